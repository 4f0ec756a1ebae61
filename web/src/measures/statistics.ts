/** What there is to say of many numbers in a few. */

/**
 * Numbers in short: sum and norm of all, NaN if one is NaN; the rest of those that are finite, which are counted. The
 * deviation is the square root of the mean squared distance from the mean; zeros are a share, from 0 to 1.
 */
export type Statistics = Readonly<
  Record<"least" | "most" | "sum" | "mean" | "deviation" | "norm" | "zeros" | "notFinite" | "count", number>
>;

/** Returns the statistics of some numbers. */
export function statisticsOf(values: ArrayLike<number>): Statistics {
  let [least, most, sum, zeros, finite] = [Infinity, -Infinity, 0, 0, 0];
  let [all, squares, distances] = [0, 0, 0]; // the first two of all numbers, whatever they are
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? Number.NaN;
    all += value;
    squares += value * value;
    if (!Number.isFinite(value)) continue;
    finite++;
    sum += value;
    if (value === 0) zeros++;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  const mean = finite ? sum / finite : Number.NaN;
  for (let index = 0; index < values.length; index++) {
    const distance = (values[index] ?? Number.NaN) - mean;
    if (Number.isFinite(distance)) distances += distance * distance;
  }
  return {
    least: finite ? least : Number.NaN,
    most: finite ? most : Number.NaN,
    sum: all,
    mean,
    deviation: Math.sqrt(distances / Math.max(1, finite)),
    norm: Math.sqrt(squares),
    zeros: zeros / Math.max(1, values.length),
    notFinite: values.length - finite,
    count: values.length,
  };
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
  const top = Array.from(all.keys())
    .sort((one, other) => Math.abs(all[other] ?? 0) - Math.abs(all[one] ?? 0))
    .slice(0, count);
  const kept = top.filter((at) => Math.abs(right[at] ?? 0) >= least);
  const turned = kept.filter((at) => (all[at] ?? 0) * (right[at] ?? 0) < 0).length;
  const largest = all.reduce((found, value, at) => Math.max(found, Math.abs(value - (right[at] ?? NaN))), 0) / most;
  return { count, others: count - kept.length, turned, largest };
}

/** Returns the quantile of some numbers, between two of them in proportion; NaN of none. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((one, other) => one - other);
  const place = share * (sorted.length - 1);
  const [low = Number.NaN, high = low] = sorted.slice(Math.floor(place), Math.floor(place) + 2);
  return low + (place % 1) * (high - low);
}

/** A histogram of magnitudes by powers of ten: heights from 0 to 1, the lowest and the highest power. */
export type Histogram = Readonly<{ heights: readonly number[]; low: number; high: number }>;

/** Returns the histogram of the magnitudes of some numbers; undefined if all are 0. */
export function histogramOf(values: readonly number[], bins = 24): Histogram | undefined {
  const powers = values.map((value) => Math.log10(Math.abs(value))).filter(Number.isFinite);
  if (powers.length === 0) return undefined;
  const { least, most } = statisticsOf(powers);
  const [low, high] = [Math.floor(least), Math.floor(most) + 1];
  const counts = new Array<number>(bins).fill(0);
  for (const power of powers) {
    const bin = Math.floor((bins * (power - low)) / (high - low));
    counts[bin] = (counts[bin] ?? 0) + 1;
  }
  const top = Math.max(...counts);
  return { heights: counts.map((count) => count / top), low, high };
}

/** Returns how many tokens come before the padding: repetitions of the last token that all have 0. */
export function unpaddedLength(texts: readonly string[], values: ArrayLike<number>): number {
  let end = texts.length;
  while (end > 0 && texts[end - 1] === texts.at(-1) && values[end - 1] === 0) end--;
  return end || texts.length;
}
