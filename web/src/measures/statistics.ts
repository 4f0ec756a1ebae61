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
  let [least, most, sum, squares, zeros, finite] = [Infinity, -Infinity, 0, 0, 0, 0];
  let rest = 0; // the sum of what is not finite, which is not finite either
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? Number.NaN;
    if (!Number.isFinite(value)) {
      rest += value;
      continue;
    }
    finite++;
    sum += value;
    squares += value * value;
    if (value === 0) zeros++;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  const mean = finite ? sum / finite : Number.NaN;
  return {
    least: finite ? least : Number.NaN,
    most: finite ? most : Number.NaN,
    sum: sum + rest,
    mean,
    deviation: Math.sqrt(Math.max(0, squares / Math.max(1, finite) - mean * mean)),
    norm: Math.sqrt(squares) + Math.abs(rest),
    zeros: zeros / Math.max(1, values.length),
    notFinite: values.length - finite,
    count: values.length,
  };
}
