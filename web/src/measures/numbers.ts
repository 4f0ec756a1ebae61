/** The numbers of a tensor, and those of one example of it. */

import type { Tensor } from "@cutaway/client";
import { largestOf } from "./statistics.js";

/** Numbers in a row, as typed arrays have them. */
export type Numbers = Exclude<Tensor["data"], BigInt64Array>;

/** One example of a tensor: its numbers without the axis of the batch. */
export type Part = Readonly<{ values: Numbers; shape: readonly number[] }>;

/** Returns the elements of a tensor as numbers; those of 64-bit whole numbers are rounded to doubles. */
export function numbersOf({ data }: Tensor): Numbers {
  return data instanceof BigInt64Array ? Float64Array.from(data, Number) : data;
}

/** Returns one example of a tensor; all of it, where its first axis is not that of the `rows` examples. */
export function partOf(tensor: Tensor, row: number, rows: number): Part {
  const [first, ...shape] = tensor.shape;
  const values = numbersOf(tensor);
  if (first !== rows) return { values, shape: tensor.shape };
  const size = sizeOf(shape);
  return { values: values.subarray(row * size, (row + 1) * size), shape };
}

/** Returns the sum of each of `count` groups of numbers; `groupOf` tells that of an index. */
export function sumsBy(values: ArrayLike<number>, count: number, groupOf: (index: number) => number): Float64Array {
  const sums = new Float64Array(count);
  for (let index = 0; index < values.length; index++) {
    const group = groupOf(index);
    sums[group] = (sums[group] ?? 0) + (values[index] ?? 0);
  }
  return sums;
}

/** Returns the features of a series [time, features], those with the largest sums of magnitudes first. */
export function weightsOfFeatures({ values, shape }: Part): number[] {
  const features = shape.at(-1) ?? 1;
  const sizes = values.map((value) => (Number.isFinite(value) ? Math.abs(value) : 0));
  return largestOf(sumsBy(sizes, features, (index) => index % features));
}

/** Returns how many elements a shape has. */
export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}
