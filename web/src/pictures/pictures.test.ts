/** Pictures, pixel by pixel. */

import { describe, expect, it } from "vitest";
import { distinct, exact, rangesText, short, signed } from "../ui/text.js";
import { pointsOf } from "./Series.js";
import { areSigned, GREY, imageOf, pixelsOf, scaleOf, veilOf } from "./colours.js";

/** The ends of viridis, and the ends and the middle of red to blue. */
const [DARK, BRIGHT] = [[68, 1, 84], [253, 231, 37]] as const; // prettier-ignore
const [BLUE, RED] = [[5, 48, 97], [103, 0, 31]] as const; // prettier-ignore

const colours = (pixels: Uint8ClampedArray): number[][] =>
  Array.from({ length: pixels.length / 4 }, (_, index) => [...pixels.subarray(4 * index, 4 * index + 3)]);

describe("labels", () => {
  it("keep what differs where all begin alike", () => {
    const long = ["n00001 European animal", "n00002 European animal"];
    expect(distinct(long)).toEqual(["…1 European animal", "…2 European animal"]);
    for (const same of [
      ["label 0", "label 1"],
      [long[0] ?? ""],
      [long[0] ?? "", long[0] ?? ""],
      ["", long[0] ?? ""],
      [],
    ])
      expect(distinct(same)).toEqual(same);
  });
});

describe("lines", () => {
  it("reach from the lowest number to the highest; what is none is at the bottom", () => {
    expect(pointsOf([1, 3, 2, NaN])).toBe("0,100 1,0 2,50 3,100");
    expect(pointsOf([4, 4])).toBe("0,100 1,100");
  });
});

describe("scales", () => {
  it("are symmetric where a number is negative", () => {
    expect(scaleOf([-1, 3])).toEqual({ kind: "signed", least: -3, most: 3 });
    expect(scaleOf([1, 3])).toEqual({ kind: "plain", least: 1, most: 3 });
    expect(scaleOf([1, 3], true)).toEqual({ kind: "signed", least: -3, most: 3 });
    expect(scaleOf([NaN])).toEqual({ kind: "plain", least: 0, most: 0 });
  });

  it("end where half a percent of many numbers lie beyond, if they are asked to", () => {
    const many = Float64Array.from({ length: 3001 }, (_, index) => (index % 2 ? -index : index));
    expect(scaleOf(many, true, true)).toEqual({ kind: "signed", least: -2985, most: 2985 });
    expect(scaleOf(many).most).toBe(3000);
    expect(scaleOf([...many.slice(0, 100)], true, true).most).toBe(99);
    expect(scaleOf(new Float64Array(3000).fill(0).with(5, 7), true, true).most).toBe(7);
    expect(scaleOf(many.map(Math.abs), false, true)).toEqual({ kind: "plain", least: 0, most: 2985 });
  });

  it("have a sign where a method has one", () => {
    expect(areSigned("Saliency of x", [0, 1])).toBe(false);
    expect(areSigned("saliency", [-1, 1])).toBe(true);
    expect(areSigned("IntegratedGradients of x", [0, 1])).toBe(true);
  });

  it("let what is below through, as far as a number is small", () => {
    const veil = veilOf([0, 1, -2, 4, NaN], { kind: "signed", least: -2, most: 2 });
    expect([3, 7, 11, 15, 19].map((at) => veil[at])).toEqual([0, 128, 255, 255, 255]);
    expect(veil.slice(8, 11)).toEqual(pixelsOf([-2], { kind: "signed", least: -2, most: 2 }).slice(0, 3));
  });

  it("have the colours of their ends", () => {
    expect(colours(pixelsOf([0, 1], scaleOf([0, 1])))).toEqual([DARK, BRIGHT]);
    expect(colours(pixelsOf([-2, 2], scaleOf([-2, 2])))).toEqual([BLUE, RED]);
  });

  it("show zero in the middle, and what is not finite in a colour of its own", () => {
    const [zero, none, endless] = colours(pixelsOf([0, NaN, Infinity], { kind: "signed", least: -1, most: 1 }));
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
    expect([0, -1.23456, 1e-5, 12345678.5, 50256, NaN, -Infinity].map((each) => short(each))).toEqual([
      ...["0", "−1.235", "1.00e−5", "1.23e+7", "50256", "NaN", "−∞"],
    ]);
    expect([short(1.23456, 3), signed(0.5), signed(-0.5), signed(0)]).toEqual(["1.23", "+0.5", "−0.5", "0"]);
    expect([signed(-1e-9, "−0.0 points"), exact(Math.fround(17.08)), exact(1 / 3)]).toEqual([
      ...["0.0 points", "17.08", "0.3333333333333333"],
    ]);
  });
});
