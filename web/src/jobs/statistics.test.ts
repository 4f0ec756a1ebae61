/** Statistics of many rows, held against numpy 2. */

import { describe, expect, it } from "vitest";
import { histogramOf } from "../measures/statistics.js";
import { dotsOf, importancesOf, LEVELS, levelsOf, limitOf, meanPicture, tokenMeans, unitsOf } from "./statistics.js";

const part = (values: number[], shape = [values.length]) => ({ values: Float64Array.from(values), shape });

describe("features", () => {
  it("have the mean and the deviation of their magnitudes, the most important first", () => {
    const explained = [
      { part: part([1, -4, NaN]), predicted: "cat" },
      { part: part([-3, 2, 0]), predicted: "dog" },
    ];
    expect(importancesOf(explained, ["cat", "dog"])).toEqual([
      { feature: 1, mean: 3, deviation: 1, byClass: [4, 2] },
      { feature: 0, mean: 2, deviation: 1, byClass: [1, 3] },
      { feature: 2, mean: 0, deviation: 0, byClass: [0, 0] },
    ]);
    expect(importancesOf([], [])).toEqual([]);
  });

  it("have dots at their values: zero in the middle, beside each other where they are equal", () => {
    const dots = dotsOf([0, 1, -1, 5, 0, NaN], [0, 6, 3, 6, 1, 2], 1);
    expect(dots.map(({ at }) => at)).toEqual([0, 1, -1, 1, 0, 0]);
    expect([0, 4, 5].map((row) => Math.abs(dots[row]?.rank ?? -1))).toEqual([0, 1, 1]);
    expect(new Set([0, 4, 5].map((row) => dots[row]?.rank)).size).toBe(3);
    expect(dots.map(({ level }) => level)).toEqual([0, 6, 3, 6, 1, 2]);
  });

  it("have colours by rank: the lowest values the first, the highest the last, one alone that in the middle", () => {
    const many = levelsOf(Array.from({ length: 70 }, (_, value) => value * value));
    expect([many[0], many[69], Math.max(...many), new Set(many).size]).toEqual([0, LEVELS - 1, LEVELS - 1, LEVELS]);
    expect(new Set(levelsOf([5, 5, 5]))).toEqual(new Set([3]));
    expect(levelsOf([0, 1, 0, 1])).toEqual([0, 6, 0, 6]);
  });

  it("beyond the axis are rare", () => {
    expect(limitOf([...Array.from({ length: 999 }, () => -1), 1000, Infinity])).toBe(1);
  });
});

describe("means", () => {
  it("of pictures are over rows, of their sums over channels; of other shapes there are none", () => {
    const two = [part([1, 2, 3, 4], [2, 1, 2]), part([0, 0, 2, 4], [2, 1, 2])];
    expect(meanPicture(two)).toEqual({ values: Float64Array.of(3, 5), shape: [1, 2] });
    expect(meanPicture([part([1]), part([1, 2])])).toBeUndefined();
    expect(meanPicture([])).toBeUndefined();
  });

  it("of tokens leave padding out, and tokens that are rare", () => {
    const texts: [string[], Float64Array][] = [
      [["good", "[PAD]", "[PAD]"], Float64Array.of(2, 0, 0)],
      [["good", "bad"], Float64Array.of(4, -1)],
    ];
    expect(tokenMeans(texts, 2)).toEqual([{ token: "good", mean: 3, count: 2 }]);
    expect(tokenMeans(texts, 1).map(({ token }) => token)).toEqual(["good", "bad"]);
  });
});

describe("units", () => {
  it("are channels of an image, and indices of the last axis of others", () => {
    expect(unitsOf([part([1, 2, 0, 0], [2, 1, 2]), part([3, 4, 0, 0], [2, 1, 2])])).toEqual({
      means: [2.5, 0],
      dead: [1],
    });
    expect(unitsOf([part([1, 0, 3, 0], [2, 2])])).toEqual({ means: [2, 0], dead: [1] });
    expect(unitsOf([part([1]), part([1, 2])])).toEqual({ means: [], dead: [] });
    expect(unitsOf([part([5], [])])).toEqual({ means: [5], dead: [] });
  });
});

describe("numbers", () => {
  it("have a histogram by powers of ten", () => {
    expect(histogramOf([1e-3, -2e-3, 5e-1, 0], 3)).toEqual({ heights: [1, 0, 0.5], low: -3, high: 0 });
    expect(histogramOf([0])).toBeUndefined();
  });
});
