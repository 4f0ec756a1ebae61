/** View 7: what an answer cost. */

import { Panel } from "../app/Panel.js";
import { Facts } from "../app/Facts.js";
import { Bars } from "../pictures/Bars.js";
import type { ViewProps } from "../state/asked.js";
import { bytesText, companyText, stagesOf, weights } from "./stages.js";
import "./cost.css";

/** Shows time, passes and bytes. */
export function CostView({ asked: { reply, milliseconds, question } }: ViewProps): preact.JSX.Element {
  const stages = stagesOf(reply, milliseconds);
  const total = Math.max(milliseconds, ...stages.map(({ begin, milliseconds: each }) => begin + each));
  const parts = weights(reply);
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
        <table class="stages">
          <tbody>
            {stages.map(({ name, what, milliseconds: each, begin }) => (
              <tr key={name}>
                <th scope="row">
                  {name}
                  <span class="muted small">{what}</span>
                </th>
                <td class="bar">
                  <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
                    <rect class="track" width={100} height={1} />
                    <rect x={(100 * begin) / total} width={Math.max(0.3, (100 * each) / total)} height={1} />
                  </svg>
                </td>
                <td class="number" data-value={each}>
                  {each.toFixed(2)} ms
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Panel>
      <Panel id="passes" title="What was run">
        <Facts facts={facts} />
      </Panel>
      <Panel id="bytes" title="What the numbers weigh">
        <Bars bars={parts.map(([name, value]) => ({ name, value }))} textOf={bytesText} />
      </Panel>
    </div>
  );
}
