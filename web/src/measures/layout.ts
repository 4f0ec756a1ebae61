/** How a tensor is best looked at, from its shape. */

import { type Part, sizeOf, sumsBy } from "./numbers.js";

/** A way to look at one example of a tensor. */
export type Layout =
  /** A picture for each channel: an image, or an attention head. */
  | { readonly kind: "planes"; readonly planes: number; readonly height: number; readonly width: number }
  /** A line for each feature over time. */
  | { readonly kind: "series"; readonly steps: number; readonly features: number }
  /** A row for each position of a sequence, or one row. */
  | { readonly kind: "rows"; readonly rows: number; readonly width: number };

/** A series without names has at least so many steps for each feature, and at most so many features. */
const [LEAST_STEPS, MOST_LINES] = [3, 16];

/**
 * Returns the way for a shape without the axis of the batch: the last two axes are a picture, those before are counted.
 * `names` are those of the features of an input, none if it has none; undefined for what is inside the model.
 */
export function layoutOf(shape: readonly number[], names?: readonly string[]): Layout {
  const width = shape.at(-1) ?? 1;
  const height = shape.at(-2) ?? 1;
  const long = height >= LEAST_STEPS * width && width <= MOST_LINES;
  const named = names?.length ? names.length === width : names && long;
  if (named && height > 1 && sizeOf(shape) === height * width)
    return { kind: "series", steps: height, features: width };
  if (shape.length < 3) return { kind: "rows", rows: height, width };
  return { kind: "planes", planes: sizeOf(shape.slice(0, -2)), height, width };
}

/** What the axes behind that of the batch are called, by how many there are. */
const AXES = [
  [],
  ["unit"],
  ["position", "feature"],
  ["channel", "row", "column"],
  ["channel", "depth", "row", "column"],
];

/** Returns what the axes of one example are called; those of one-dimensional convolutions and pools are channels first. */
export function axisNames(count: number, type = ""): readonly string[] {
  if (count === 2 && type.endsWith("1d")) return ["channel", "position"];
  return AXES[count] ?? Array.from({ length: count }, (_, axis) => `axis ${axis + 1}`);
}

/** Returns how many parts a layout has: planes, the rows of a sequence, or the elements of a vector. */
export function partsOf(layout: Layout): number {
  if (layout.kind === "series") return layout.features;
  return layout.kind === "planes" ? layout.planes : layout.rows > 1 ? layout.rows : layout.width;
}

/** Returns the place of a part along the axes before its own. */
export function placeOf({ shape }: Pick<Part, "shape">, part: number): number[] {
  return indicesOf(shape.slice(0, shape.length < 3 ? 1 : -2), part);
}

/** Returns the index along each axis of an element, from its number. */
export function indicesOf(shape: readonly number[], element: number): number[] {
  return shape.reduceRight<number[]>((found, size) => {
    const index = element % size;
    element = (element - index) / size;
    return [index, ...found];
  }, []);
}

/** Returns one of the parts: a plane, a row, or an element. */
export function planeOf({ values, shape }: Part, part: number): Part {
  const own = shape.slice(shape.length < 3 ? 1 : -2);
  const size = sizeOf(own);
  return { values: values.subarray(part * size, (part + 1) * size), shape: own };
}

/** Returns the sum over all planes: one picture of an explanation with several channels. */
export function flattened({ values, shape }: Part): Part {
  const [height = 1, width = 1] = shape.slice(-2);
  const size = height * width;
  return { values: sumsBy(values, size, (index) => index % size), shape: [height, width] };
}
