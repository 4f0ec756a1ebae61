/** View 7: what an answer cost. */

import { Panel, Facts } from "../app/parts.js";
import { Bars } from "../pictures/Bars.js";
import type { ViewProps } from "../state/asked.js";
import { bytesText, companyText, stagesOf, weights } from "./stages.js";
import "./cost.css";

/** Shows time, passes and bytes. */
export function CostView({ asked: { reply, milliseconds, question } }: ViewProps): preact.JSX.Element {
  const stages = stagesOf(reply, milliseconds);
  const total = Math.max(milliseconds, ...stages.map(({ begin, value }) => begin + value));
  const { provenance } = reply.message;
  const facts: [string, string][] = [
    ["In all", `${milliseconds.toFixed(1)} ms`],
    ["Forward passes", `${provenance?.forwards ?? 0}`],
    ["Backward passes", `${provenance?.backwards ?? 0}`],
    ["Requests in the same pass", companyText(provenance?.companions ?? 0)],
    ["Explanations", `${question.attributions?.length ?? 0}`],
    ["Seed", `${provenance?.seed ?? 0n}`],
    ["Device", provenance?.device ?? ""],
  ];
  return (
    <div class="cost">
      <Panel id="time" title="Where the time went">
        <Bars bars={stages} lengthOf={(each) => each / total} textOf={(each) => `${each.toFixed(2)} ms`} />
      </Panel>
      <Panel id="passes" title="What was run">
        <Facts facts={facts} />
      </Panel>
      <Panel id="bytes" title="What the numbers weigh">
        <Bars bars={weights(reply)} textOf={bytesText} />
      </Panel>
    </div>
  );
}
