/** A prediction as people compare it: one number for each class. */

import type { ModelDetail, Tensor } from "@cutaway/client";
import { elements } from "./arrays.js";

/** One class, or one element of an output. */
export interface Bar {
  readonly index: number;
  readonly label: string;
  /** The probability, from 0 to 1; or the element itself. */
  readonly value: number;
}

/** Returns the softmax of logits. */
export function softmax(logits: readonly number[]): number[] {
  const most = Math.max(...logits);
  const powers = logits.map((each) => Math.exp(each - most));
  const sum = powers.reduce((total, each) => total + each, 0);
  return powers.map((each) => each / sum);
}

/** Returns the elements of one example of an output. */
export function rowOf(output: Tensor, row: number): number[] {
  const length = output.shape.slice(1).reduce((product, size) => product * size, 1);
  return elements(output).slice(row * length, (row + 1) * length);
}

/** Returns the largest `most` classes of one example of logits [batch, classes], the largest first. */
export function classBars(logits: Tensor, row: number, { labels }: ModelDetail, most: number): Bar[] {
  const bars = softmax(rowOf(logits, row)).map((value, index) => ({
    index,
    label: labels[index] ?? `${index}`,
    value,
  }));
  return bars.sort((one, other) => other.value - one.value).slice(0, most);
}

/** Returns the first `most` elements of one example of an output that has no classes. */
export function elementBars(output: Tensor, row: number, most: number): Bar[] {
  return rowOf(output, row)
    .slice(0, most)
    .map((value, index) => ({ index, label: `${index}`, value }));
}
