/** How a person may give a model its inputs: what the model declares decides. */

import { DataType, type ModelDetail } from "@cutaway/client";

/** A forward argument. */
export type InputSpec = ModelDetail["inputs"][number];

/** A way to give one tensor. */
export type TensorWay = "draw" | "table" | "numbers";

/** A way to give the whole input. */
export type Way = "files" | "text" | "tensors";

/** The types that gradients can be of; a model that does not say may take any. */
export const FLOATING = [DataType.UNSPECIFIED, DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT32, DataType.FLOAT64];

const LARGEST_DRAWING = 64;
const LONGEST_TABLE = 256;

/** Returns the ways for a model, the most natural first. */
export function waysOf({ mediaTypes, inputs }: ModelDetail): Way[] {
  const isText = (each: string): boolean => each === "text/plain" || each === "text/*";
  const text = mediaTypes.some(isText);
  const files = !mediaTypes.every(isText);
  const drawn = inputs.some((each) => tensorWaysOf(each)[0] === "draw");
  const raw: Way[] = [...(text ? (["text"] as const) : []), ...(files ? (["files"] as const) : [])];
  return drawn ? ["tensors", ...raw] : [...raw, "tensors"];
}

/** Returns the ways for one input, the most natural first. */
export function tensorWaysOf(spec: InputSpec): TensorWay[] {
  const [, ...sizes] = spec.shape.map(Number);
  const [channels, height = 0, width = 0] = sizes;
  const small = (size: number): boolean => size > 0 && size <= LARGEST_DRAWING;
  if (FLOATING.includes(spec.dataType) && sizes.length === 3 && channels === 1 && small(height) && small(width))
    return ["draw", "numbers"];
  if (sizes.length === 1 && (channels ?? -1) > 0 && (channels ?? 0) <= LONGEST_TABLE) return ["table", "numbers"];
  return ["numbers"];
}

/** Whether a model writes texts: what transformers calls the classes of such models. */
export function writes({ modules }: Pick<ModelDetail, "modules">): boolean {
  return /(ForCausalLM|LMHeadModel|ForConditionalGeneration)$/.test(modules[0]?.type ?? "");
}

/** Returns the shape of one example, with 1 for an axis of any size. */
export function oneExample(spec: InputSpec): number[] {
  return [1, ...spec.shape.slice(1).map((size) => Math.max(1, Number(size)))];
}
