/** Pictures, pixel by pixel. */

import { describe, expect, it } from "vitest";
import { GREY, imageOf, pixelsOf, scaleOf } from "./colours.js";
import { exact, rangesText, short, signed } from "../ui/text.js";

/** The ends of viridis, and the ends and the middle of red to blue. */
const [DARK, BRIGHT] = [[68, 1, 84], [253, 231, 37]] as const; // prettier-ignore
const [BLUE, RED] = [[5, 48, 97], [103, 0, 31]] as const; // prettier-ignore

const colours = (pixels: Uint8ClampedArray): number[][] =>
  Array.from({ length: pixels.length / 4 }, (_, index) => [...pixels.subarray(4 * index, 4 * index + 3)]);

describe("scales", () => {
  it("are symmetric where a number is negative", () => {
    expect(scaleOf([-1, 3])).toEqual({ kind: "signed", least: -3, most: 3 });
    expect(scaleOf([1, 3])).toEqual({ kind: "plain", least: 1, most: 3 });
    expect(scaleOf([1, 3], true)).toEqual({ kind: "signed", least: -3, most: 3 });
    expect(scaleOf([Number.NaN])).toEqual({ kind: "plain", least: 0, most: 0 });
  });

  it("have the colours of their ends", () => {
    expect(colours(pixelsOf([0, 1], scaleOf([0, 1])))).toEqual([DARK, BRIGHT]);
    expect(colours(pixelsOf([-2, 2], scaleOf([-2, 2])))).toEqual([BLUE, RED]);
  });

  it("show zero in the middle, and what is not finite in a colour of its own", () => {
    const [zero, none, endless] = colours(pixelsOf([0, Number.NaN, Infinity], { kind: "signed", least: -1, most: 1 }));
    expect(Math.max(...(zero ?? [])) - Math.min(...(zero ?? []))).toBeLessThan(8);
    expect(Math.min(...(zero ?? []))).toBeGreaterThan(230);
    expect([none, endless]).toEqual([[255, 0, 200], [255, 0, 200]]); // prettier-ignore
  });

  it("of a drawing reach from black to white", () => {
    expect(colours(pixelsOf([-1, 0.25, 1], GREY))).toEqual([[0, 0, 0], [63, 63, 63], [255, 255, 255]]); // prettier-ignore
  });

  it("of a constant are one colour", () => {
    expect(new Set(colours(pixelsOf([4, 4, 4], scaleOf([4, 4, 4]))).map(String)).size).toBe(1);
  });
});

describe("images", () => {
  it("reach from their darkest to their brightest", () => {
    expect(colours(imageOf([0, 1, 2], 1))).toEqual([[0, 0, 0], [128, 128, 128], [255, 255, 255]]); // prettier-ignore
    expect(colours(imageOf([1, 0, 0], 3))).toEqual([[255, 0, 0]]);
  });
});

describe("numbers", () => {
  it("in a run are told by its ends", () => {
    expect([[], [3], [0, 1, 2], [0, 2, 3, 7]].map(rangesText)).toEqual(["", "3", "0 to 2", "0, 2 to 3, 7"]);
  });

  it("are short", () => {
    expect([0, -1.23456, 1e-5, 12345678.5, 50256, Number.NaN, -Infinity].map((each) => short(each))).toEqual([
      ...["0", "−1.235", "1.00e−5", "1.23e+7", "50256", "NaN", "−∞"],
    ]);
    expect([short(1.23456, 3), signed(0.5), signed(-0.5), signed(0)]).toEqual(["1.23", "+0.5", "−0.5", "0"]);
    expect([signed(-1e-9, "−0.0 points"), exact(Math.fround(17.08)), exact(1 / 3)]).toEqual([
      ...["0.0 points", "17.08", "0.3333333333333333"],
    ]);
  });
});
