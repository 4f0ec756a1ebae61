/** How alike two explanations are. */

/**
 * Three measures, each from -1 or 0 to 1: the cosine between the two, Spearman's rank correlation, and the share that the
 * largest tenth of the one, by magnitude, has in common with that of the other.
 */
export type Agreement = Readonly<{ cosine: number; ranks: number; top: number }>;

/** Returns how alike two arrays of one length are; NaN where one of them is constant, or has what is not finite. */
export function agreementOf(one: ArrayLike<number>, other: ArrayLike<number>): Agreement {
  const alike = cosine(one, other);
  if (!Number.isFinite(alike)) return { cosine: Number.NaN, ranks: Number.NaN, top: Number.NaN };
  const tenth = Math.max(1, Math.round(one.length / 10));
  const centred = (values: ArrayLike<number>): Float64Array =>
    ranks(values).map((rank) => rank - (values.length + 1) / 2);
  return { cosine: alike, ranks: cosine(centred(one), centred(other)), top: topOverlap(one, other, tenth) };
}

/** Returns the cosine between two arrays; NaN where one of them is zero. */
export function cosine(one: ArrayLike<number>, other: ArrayLike<number>): number {
  let [product, left, right] = [0, 0, 0];
  for (let index = 0; index < one.length; index++) {
    const [a, b] = [one[index] ?? 0, other[index] ?? 0];
    product += a * b;
    left += a * a;
    right += b * b;
  }
  return product / Math.sqrt(left * right);
}

/** Returns the rank of each number, from 1; equal ones share the mean of theirs. */
export function ranks(values: ArrayLike<number>): Float64Array {
  const places = Array.from(Float64Array.from(values).sort(), (value, index) => [value, index + 1] as const);
  const last = new Map(places);
  const first = new Map(places.reverse());
  return Float64Array.from(values, (value) => ((first.get(value) ?? 0) + (last.get(value) ?? 0)) / 2);
}

/** Returns the share of the `count` largest magnitudes that two arrays have at the same places. */
export function topOverlap(one: ArrayLike<number>, other: ArrayLike<number>, count: number): number {
  const top = (values: ArrayLike<number>): Uint32Array =>
    Uint32Array.from({ length: values.length }, (_, index) => index)
      .sort((left, right) => Math.abs(values[right] ?? 0) - Math.abs(values[left] ?? 0))
      .subarray(0, count);
  const places = new Set(top(one));
  return top(other).filter((index) => places.has(index)).length / count;
}
