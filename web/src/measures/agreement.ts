/** How alike two explanations are. */

/** Three measures, each from -1 or 0 to 1. */
export interface Agreement {
  /** The cosine between the two. */
  readonly cosine: number;
  /** Spearman's rank correlation. */
  readonly ranks: number;
  /** The share that the largest tenth of the one, by magnitude, has in common with that of the other. */
  readonly top: number;
}

/** Returns how alike two arrays of one length are; NaN where one of them is constant, or has what is not finite. */
export function agreementOf(one: ArrayLike<number>, other: ArrayLike<number>): Agreement {
  const tenth = Math.max(1, Math.round(one.length / 10));
  if (!Number.isFinite(cosine(one, other))) return { cosine: Number.NaN, ranks: Number.NaN, top: Number.NaN };
  return {
    cosine: cosine(one, other),
    ranks: rankCorrelation(one, other),
    top: topOverlap(one, other, tenth),
  };
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

/** Returns Spearman's rank correlation: that of the ranks, where equal numbers share the mean of theirs. */
export function rankCorrelation(one: ArrayLike<number>, other: ArrayLike<number>): number {
  const middle = (one.length + 1) / 2;
  return cosine(
    ranks(one).map((rank) => rank - middle),
    ranks(other).map((rank) => rank - middle),
  );
}

/** Returns the rank of each number, from 1. */
export function ranks(values: ArrayLike<number>): Float64Array {
  const order = orderOf(values, (value) => value);
  const found = new Float64Array(values.length);
  for (let start = 0; start < order.length;) {
    let end = start;
    while (end < order.length && values[order[end] ?? 0] === values[order[start] ?? 0]) end++;
    for (const index of order.subarray(start, Math.max(end, start + 1)))
      found[index] = (start + Math.max(end, start + 1) + 1) / 2;
    start = Math.max(end, start + 1);
  }
  return found;
}

/** Returns the share of the `count` largest magnitudes that two arrays have at the same places. */
export function topOverlap(one: ArrayLike<number>, other: ArrayLike<number>, count: number): number {
  const top = (values: ArrayLike<number>): Uint32Array =>
    orderOf(values, (value) => -Math.abs(value)).subarray(0, count);
  const places = new Set(top(one));
  return top(other).filter((index) => places.has(index)).length / count;
}

function orderOf(values: ArrayLike<number>, key: (value: number) => number): Uint32Array {
  const keys = Float64Array.from(values, key);
  return Uint32Array.from(keys.keys()).sort((one, other) => (keys[one] ?? 0) - (keys[other] ?? 0) || one - other);
}
