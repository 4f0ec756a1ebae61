/** Measures, held against numpy 2 and scipy 1.17: `numpy.std`. */

import { tensor } from "@cutaway/client";
import { describe, expect, it } from "vitest";

import { axisNames, flattened, layoutOf, placeOf, planeOf } from "./layout.js";
import { numbersOf, partOf, weightsOfFeatures } from "./numbers.js";
import { cosine, statisticsOf } from "./statistics.js";

const ONE = [3, -1, 2, 2, 0, 5, -4, 1, 1, 7];
const OTHER = [2, 0, 2, 1, -1, 4, -5, 3, 1, 6];

describe("statistics", () => {
  it("are those of numpy", () => {
    const found = statisticsOf(ONE);
    expect(found).toMatchObject({ least: -4, most: 7, sum: 16, mean: 1.6, zeros: 0.1, notFinite: 0, count: 10 });
    expect(found.deviation).toBeCloseTo(2.90516780926679, 12);
    expect(found.norm).toBeCloseTo(10.488088481701515, 12);
  });

  it("are those of numpy far from zero too", () => {
    expect(statisticsOf([1.7e9, 1.7e9 + 1, 1.7e9 + 2]).deviation).toBeCloseTo(0.816496580927726, 12);
  });

  it("count what is not finite, and leave it out", () => {
    expect(statisticsOf([1, NaN, Infinity, 3])).toMatchObject({ least: 1, most: 3, mean: 2, notFinite: 2 });
    const { NaN: none } = Number;
    expect(statisticsOf([1, none])).toMatchObject({ sum: none, norm: none });
    expect(statisticsOf([1, -Infinity])).toMatchObject({ sum: -Infinity, norm: Infinity });
    expect(statisticsOf([Infinity, -Infinity])).toMatchObject({ sum: none, norm: Infinity });
    expect(statisticsOf([])).toMatchObject({ least: NaN, mean: NaN, norm: 0, zeros: 0 });
  });
});

describe("agreement", () => {
  it("is that of numpy", () => {
    expect(cosine(ONE, OTHER)).toBeCloseTo(0.9487326919171055, 12);
    expect(cosine([0, 0], [1, 2])).toBeNaN();
  });
});

describe("parts", () => {
  const whole = tensor(
    Float32Array.from({ length: 24 }, (_, index) => index),
    [2, 3, 2, 2],
  );

  it("are one example each", () => {
    expect(partOf(whole, 1, 2)).toEqual({ values: whole.data.subarray(12), shape: [3, 2, 2] });
    expect([...planeOf(partOf(whole, 1, 2), 2).values]).toEqual([20, 21, 22, 23]);
  });

  it("are all of a tensor whose first axis is another one", () => {
    expect(partOf(whole, 0, 5)).toEqual({ values: whole.data, shape: [2, 3, 2, 2] });
    expect(placeOf({ shape: [2, 3, 2, 2] }, 4)).toEqual([1, 1]);
    expect([axisNames(1), axisNames(2), axisNames(2, "Conv1d"), axisNames(5)]).toEqual([
      ["unit"],
      ["position", "feature"],
      ["channel", "position"],
      [1, 2, 3, 4, 5].map((axis) => `axis ${axis}`),
    ]);
  });

  it("with several channels are one picture by their sum", () => {
    expect([...flattened(partOf(whole, 0, 2)).values]).toEqual([0 + 4 + 8, 1 + 5 + 9, 2 + 6 + 10, 3 + 7 + 11]);
  });

  it("of 64-bit whole numbers are numbers", () => {
    expect([...numbersOf(tensor(new BigInt64Array([1n, -2n]), [2]))]).toEqual([1, -2]);
  });

  it("are looked at by their shape", () => {
    expect(layoutOf([16, 8, 4])).toEqual({ kind: "planes", planes: 16, height: 8, width: 4 });
    expect(layoutOf([2, 4, 9, 9])).toEqual({ kind: "planes", planes: 8, height: 9, width: 9 });
    expect(layoutOf([12, 384])).toEqual({ kind: "rows", rows: 12, width: 384 });
    expect(layoutOf([10])).toEqual({ kind: "rows", rows: 1, width: 10 });
    expect(layoutOf([])).toEqual({ kind: "rows", rows: 1, width: 1 });
  });

  it("of an input are series over time by their names, or by their many steps", () => {
    const named = ["pulse", "breaths", "pressure"];
    expect(layoutOf([4, 3], named)).toEqual({ kind: "series", steps: 4, features: 3 });
    expect(layoutOf([1, 96, 3], named)).toEqual({ kind: "series", steps: 96, features: 3 });
    expect(layoutOf([96, 5], [])).toEqual({ kind: "series", steps: 96, features: 5 });
    for (const shape of [[96, 5], [96, 40], [28, 28], [5, 96], [3], [1, 3], [2, 96, 3]])
      // prettier-ignore
      expect(layoutOf(shape, shape.at(-1) === 5 ? undefined : []).kind).not.toBe("series");
    expect(layoutOf([96, 5], named).kind).toBe("rows");
  });

  it("of a series begin with the feature that counts most", () => {
    const values = Float64Array.from([1, -3, 0, 1, NaN, 5]);
    expect(weightsOfFeatures({ values, shape: [2, 3] })).toEqual([2, 1, 0]);
  });
});
