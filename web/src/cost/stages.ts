/** Where the time of an answer went, and what its parts weigh. */

import type { Inspection } from "@cutaway/client";

/** A stage of a call. */
export interface Stage {
  readonly name: string;
  readonly what: string;
  readonly milliseconds: number;
  /** Milliseconds from the call until it began; stages follow one another. */
  readonly begin: number;
}

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
  const stages = STAGES.map(([field, name, what]) => {
    const stage = { name, what, milliseconds: timings?.[field] ?? 0, begin };
    begin += stage.milliseconds;
    return stage;
  });
  const rest = Math.max(0, milliseconds - begin);
  return [...stages, { name: "Network and page", what: "all that the server does not see", milliseconds: rest, begin }];
}

/** Returns the bytes of the numbers in a reply, by the part that they are in. */
export function weights({
  predictions,
  captures,
  inputGradients,
  parameterGradients,
  attributions,
}: Inspection): [string, number][] {
  const sum = (tensors: Inspection["predictions"]): number =>
    Object.values(tensors).reduce((total, { data }) => total + data.byteLength, 0);
  const parts: [string, number][] = [
    ["Predictions", sum(predictions)],
    ["Captures", sum(captures)],
    ["Gradients at inputs", sum(inputGradients)],
    ["Gradients at parameters", sum(parameterGradients)],
    ["Attributions", attributions.reduce((total, { values }) => total + sum(values), 0)],
  ];
  return parts.filter(([, bytes]) => bytes > 0);
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
