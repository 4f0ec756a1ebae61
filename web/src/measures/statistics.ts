/** What there is to say of many numbers in a few. */

import { bin, extent, mean, range } from "d3-array";

/**
 * Numbers in short: sum and norm of all, NaN if one is NaN; the rest of those that are finite, which are counted. The
 * deviation is the square root of the mean squared distance from the mean; zeros are a share, from 0 to 1.
 */
export type Statistics = Readonly<
  Record<"least" | "most" | "sum" | "mean" | "deviation" | "norm" | "zeros" | "notFinite" | "count", number>
>;

/** Returns the statistics of some numbers. */
export function statisticsOf(values: ArrayLike<number>): Statistics {
  const all = new Float64Array(values);
  const finite = all.filter(Number.isFinite);
  const [least = NaN, most = NaN] = extent(finite);
  const middle = mean(finite) ?? NaN;
  const { length: count } = all;
  return {
    least,
    most,
    sum: all.reduce((sum, value) => sum + value, 0),
    mean: middle,
    deviation: Math.sqrt(mean(finite, (value) => (value - middle) ** 2) ?? 0),
    norm: Math.sqrt(product(all, all)),
    zeros: all.filter((value) => value === 0).length / Math.max(1, count),
    notFinite: count - finite.length,
    count,
  };
}

function product(one: Float64Array, other: ArrayLike<number>): number {
  return one.reduce((sum, value, at) => sum + value * (other[at] ?? 0), 0);
}

/** Returns the cosine between two arrays; NaN where one of them is zero. */
export function cosine(one: ArrayLike<number>, other: ArrayLike<number>): number {
  const [left, right] = [new Float64Array(one), new Float64Array(other)];
  return product(left, right) / Math.sqrt(product(left, left) * product(right, right));
}

/**
 * How numbers differ from those that they should be. Of the largest tenth of them by magnitude, `count` elements, how many
 * are others, and how many of the rest have the other sign; and the largest difference by the largest magnitude.
 */
export type Difference = Readonly<{ count: number; others: number; turned: number; largest: number }>;

/** Returns how numbers differ from others; what differs by less than `tolerance` of the largest magnitude is as large. */
export function differenceOf(values: ArrayLike<number>, others: ArrayLike<number>, tolerance = 0): Difference {
  const [all, right] = [Float64Array.from(values), Float64Array.from(others)];
  const sizes = right.map(Math.abs).sort();
  const most = sizes.at(-1) || 1;
  const count = Math.max(1, Math.round(all.length / 10));
  const least = (sizes.at(-count) ?? 0) - tolerance * most;
  const kept = largestOf(all, count).filter((at) => Math.abs(right[at] ?? 0) >= least);
  const turned = kept.filter((at) => (all[at] ?? 0) * (right[at] ?? 0) < 0).length;
  const largest = all.reduce((found, value, at) => Math.max(found, Math.abs(value - (right[at] ?? NaN))), 0) / most;
  return { count, others: count - kept.length, turned, largest };
}

/** Returns the places of the largest numbers by magnitude, the largest first; what is not finite comes last. */
export function largestOf(values: ArrayLike<number>, count = values.length): number[] {
  const sizes = Float64Array.from(values, (value) => (Number.isFinite(value) ? Math.abs(value) : 0));
  return Array.from(sizes.keys())
    .sort((one, other) => (sizes[other] ?? 0) - (sizes[one] ?? 0))
    .slice(0, count);
}

/** A histogram of magnitudes by powers of ten: heights from 0 to 1, the lowest and the highest power. */
export type Histogram = Readonly<{ heights: readonly number[]; low: number; high: number }>;

/** Returns the histogram of the magnitudes of some numbers; undefined if all are 0. */
export function histogramOf(values: readonly number[], bins = 24): Histogram | undefined {
  const powers = values.map((value) => Math.log10(Math.abs(value))).filter(Number.isFinite);
  const [least, most] = extent(powers);
  if (least === undefined) return undefined;
  const [low, high] = [Math.floor(least), Math.floor(most) + 1];
  const limits = range(1, bins).map((limit) => low + (limit * (high - low)) / bins);
  const counts = bin()
    .domain([low, high])
    .thresholds(limits)(powers)
    .map(({ length }) => length);
  return { heights: counts.map((count) => count / Math.max(...counts)), low, high };
}

/** Returns how many tokens come before the padding: repetitions of the last token that all have 0. */
export function unpaddedLength(texts: readonly string[], values: ArrayLike<number>): number {
  const end = texts.findLastIndex((text, at) => text !== texts.at(-1) || values[at] !== 0) + 1;
  return end || texts.length;
}
