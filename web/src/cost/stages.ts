/** Where the time of an answer went, and what its parts weigh. */

import type { Inspection } from "@cutaway/client";
import type { Named } from "../pictures/Bars.js";

/** A stage of a call: its milliseconds, and those from the call until it began; stages follow one another. */
type Stage = Required<Named>;

const STAGES = [
  ["queueMs", "Queue", "waiting for a worker, and the way to it"],
  ["decodeMs", "Decode", "bytes to tensors"],
  ["forwardMs", "Forward", "the forward pass"],
  ["backwardMs", "Backward", "the backward pass"],
  ["attributionMs", "Attribution", "Captum"],
  ["checkMs", "Check", "references from raw hooks, and comparisons"],
  ["encodeMs", "Encode", "tensors to bytes"],
] as const;

/** Returns the stages in their order; the last one is what the server did not see: the network, and this page. */
export function stagesOf({ message: { timings } }: Inspection, milliseconds: number): Stage[] {
  let begin = 0;
  const stages = STAGES.map(([field, name, about]) => {
    const stage = { name, about, value: timings?.[field] ?? 0, begin };
    begin += stage.value;
    return stage;
  });
  const rest = Math.max(0, milliseconds - begin);
  return [...stages, { name: "Network and page", about: "all that the server does not see", value: rest, begin }];
}

/** Returns the bytes of the numbers in a reply, by the part that they are in. */
export function weights(reply: Inspection): Named[] {
  const sum = (...parts: Inspection["predictions"][]): number =>
    parts.flatMap((tensors) => Object.values(tensors)).reduce((total, { data }) => total + data.byteLength, 0);
  const parts = [
    { name: "Predictions", value: sum(reply.predictions) },
    { name: "Captures", value: sum(reply.captures) },
    { name: "Gradients at inputs", value: sum(reply.inputGradients) },
    { name: "Gradients at parameters", value: sum(reply.parameterGradients) },
    { name: "Attributions", value: sum(...reply.attributions.map(({ values }) => values)) },
  ];
  return parts.filter(({ value }) => value > 0);
}

/** Returns a number of bytes as people read it. */
export function bytesText(bytes: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  const power = Math.min(units.length - 1, bytes > 0 ? Math.floor(Math.log2(bytes) / 10) : 0);
  return `${(bytes / 1024 ** power).toLocaleString("en", { maximumFractionDigits: 1 })} ${units[power] ?? ""}`;
}

/** Returns how many requests were in a pass, as people read it. */
export function companyText(companions: number): string {
  return companions ? `${companions + 1}, this one included` : "this one alone";
}
