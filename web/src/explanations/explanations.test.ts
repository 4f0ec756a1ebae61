/** What is said of an explanation beside its reference, and what is put in the place of a part of the input. */

import { Verdict } from "@cutaway/client";
import { describe, expect, it } from "vitest";
import { differenceOf } from "../measures/statistics.js";
import { blurred } from "./Baseline.js";
import { differenceText } from "./Reference.js";
import { placesIn } from "./Swap.js";
import { byToken } from "./Values.js";

describe("differences", () => {
  const right = Array.from({ length: 20 }, (_, at) => (at < 2 ? 10 - at : at / 100));

  it("count what else is largest, and what has the other sign", () => {
    expect(differenceOf(right, right)).toEqual({ count: 2, others: 0, turned: 0, largest: 0 });
    expect(differenceOf(right.with(0, -10), right)).toEqual({ count: 2, others: 0, turned: 1, largest: 2 });
    expect(differenceOf(right.with(19, 12), right)).toMatchObject({ count: 2, others: 1, turned: 0 });
  });

  it("do not count what is as large within the tolerance", () => {
    const close = [1, 1.0001, ...new Array<number>(8).fill(0)];
    const swapped = [1.0001, 1, ...new Array<number>(8).fill(0)];
    expect(differenceOf(close, swapped)).toMatchObject({ count: 1, others: 1 });
    expect(differenceOf(close, swapped, 1e-3)).toMatchObject({ count: 1, others: 0 });
  });

  it("matter where other elements are the largest, or values are far off", () => {
    const wrong = (values: number[]): string =>
      differenceText(differenceOf(values, right), "pixels", Verdict.DISAGREES);
    expect(wrong(right.with(19, 12))).toBe(
      "It matters: the largest tenth of all pixels is another one, 1 of 2; values differ by at most 120 % of the largest.",
    );
    expect(wrong(right.map((value) => 1.01 * value))).toBe(
      "It matters little: the largest tenth of all pixels is the same; values differ by at most 1 % of the largest.",
    );
    expect(wrong(right.map((value) => 2 * value))).toMatch(/^It matters: the largest tenth of all pixels is the same;/);
    expect(wrong(right.with(0, -10))).toContain("with the other sign at 1 of 2");
    expect(wrong(right.with(0, NaN))).toContain("not finite");
    expect(differenceText(differenceOf(right.with(19, 0.2), right), "tokens")).toMatch(
      /^The largest tenth of all tokens/,
    );
  });
});

describe("tokens", () => {
  it("are summed over the width of the embedding, and Grad-CAM has them as they are", () => {
    expect([...byToken({ values: Float64Array.of(1, 2, 3, 4) }, 2)]).toEqual([3, 7]);
    expect([...byToken({ values: Float64Array.of(1, 2, 3) }, 3)]).toEqual([1, 2, 3]);
  });

  it("are found in the text one behind the other, without the marks of tokenizers", () => {
    const text = "Cats like cats";
    const found = placesIn(text, ["[CLS]", "cat", "##s", "Ġlike", "cats", "[SEP]"]);
    expect(found.map(({ at, start, end }) => [at, text.slice(start, end)])).toEqual([
      [1, "Cat"],
      [2, "s"],
      [3, "like"],
      [4, "cats"],
    ]);
  });
});

describe("blurred baselines", () => {
  it("keep a constant, and spread a point over its neighbours within a quarter of the sides", () => {
    expect([...blurred(new Float64Array(12).fill(3), [1, 3, 4])]).toEqual(new Array(12).fill(3));
    const point = Float64Array.from({ length: 64 }, (_, at) => Number(at === 27));
    const spread = blurred(point, [1, 8, 8]);
    expect(spread[27]).toBeCloseTo((7 / 27) ** 2); // three windows of three meet in 7 of 27 ways
    expect(spread.reduce((sum, value) => sum + value, 0)).toBeCloseTo(1);
    expect(spread[27 + 3]).toBeCloseTo((7 / 27) * (1 / 27));
    expect(spread[27 + 4]).toBeCloseTo(0);
  });
});
