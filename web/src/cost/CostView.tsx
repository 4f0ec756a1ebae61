/** View 7: what an answer cost: where its time went, and what its parts weigh. */

import type { Inspection } from "@cutaway/client";
import { Bars, type Named } from "../pictures/Bars.js";
import { bytesOf, type ViewProps } from "../state/index.js";
import { Facts, Panel } from "../ui/index.js";
import "./cost.css";

/** Shows time, passes and bytes. */
export function CostView({ asked: { reply, whole, milliseconds, question } }: ViewProps): preact.JSX.Element {
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
      {whole ? (
        <Panel id="time" title="Where the time went">
          <Bars bars={stages} lengthOf={(each) => each / total} textOf={(each) => `${each.toFixed(2)} ms`} />
        </Panel>
      ) : (
        <p class="muted">Where the time went, and what was run, is told with the last explanation.</p>
      )}
      {reply.attributions.length > 0 && (
        <Panel id="explanation-times" title="Each explanation">
          <Bars bars={times(reply)} textOf={(each) => `${each.toFixed(2)} ms`} />
        </Panel>
      )}
      {whole && (
        <Panel id="passes" title="What was run">
          <Facts facts={facts} />
        </Panel>
      )}
      <Panel id="bytes" title="What the numbers weigh">
        <Bars bars={weights(reply)} textOf={bytesText} />
      </Panel>
    </div>
  );
}

const STAGES = [
  ["queueMs", "Queue", "waiting for a worker, and the way to it"],
  ["decodeMs", "Decode", "bytes to tensors"],
  ["forwardMs", "Forward", "the forward pass"],
  ["backwardMs", "Backward", "the backward pass"],
  ["attributionMs", "Attribution", "Captum"],
  ["checkMs", "Check", "references from raw hooks, and comparisons"],
  ["proofMs", "Proof", "tests of the model, of which later requests use the outcomes"],
  ["encodeMs", "Encode", "tensors to bytes"],
] as const;

/** Returns the stages of a call, which follow one another, in milliseconds; the last one is what the server did not see: the network, and this page. */
export function stagesOf({ message: { timings } }: Inspection, milliseconds: number): Required<Named>[] {
  let begin = 0;
  const stages = STAGES.map(([field, name, about]) => {
    const stage = { name, about, value: timings?.[field] ?? 0, begin };
    begin += stage.value;
    return stage;
  });
  const rest = Math.max(0, milliseconds - begin);
  return [...stages, { name: "Network and page", about: "all that the server does not see", value: rest, begin }];
}

/** Returns the milliseconds of each attribution, its check included. */
export function times({ attributions }: Inspection): Named[] {
  return attributions.map(({ method, layer, message: { attributionMs, checkMs } }) => ({
    name: layer ? `${method} ${layer}` : method,
    about: `${checkMs.toFixed(2)} ms of it for the check`,
    value: attributionMs + checkMs,
  }));
}

/** Returns the bytes of the numbers in a reply, by the part that they are in. */
export function weights(reply: Inspection): Named[] {
  const parts = [
    { name: "Predictions", value: bytesOf(reply.predictions) },
    { name: "Captures", value: bytesOf(reply.captures) },
    { name: "Gradients at inputs", value: bytesOf(reply.inputGradients) },
    { name: "Gradients at parameters", value: bytesOf(reply.parameterGradients) },
    { name: "Attributions", value: bytesOf(...reply.attributions.map(({ values }) => values)) },
  ];
  return parts.filter(({ value }) => value > 0);
}

/** Returns a number of bytes as people read it. */
function bytesText(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const power = Math.min(units.length - 1, bytes > 0 ? Math.floor(Math.log2(bytes) / 10) : 0);
  return `${(bytes / 1024 ** power).toLocaleString("en", { maximumFractionDigits: 1 })} ${units[power] ?? ""}`;
}

/** Returns how many requests were in a pass, as people read it. */
export function companyText(companions: number): string {
  return companions ? `${companions + 1}, this one included` : "this one alone";
}
