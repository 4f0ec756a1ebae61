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
