/** How alike two arrays are. */

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
