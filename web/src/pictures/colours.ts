/** Colour scales: what colour a number has. Colour-blind people can tell all of them apart. */

import { interpolateRdBu, interpolateViridis } from "d3-scale-chromatic";
import { statisticsOf } from "../measures/index.js";

/** A scale: signed ones are symmetric around zero. */
export interface Scale {
  readonly kind: keyof typeof TABLES;
  readonly least: number;
  readonly most: number;
}

const STEPS = 257; // odd, so that zero has the middle one

/** The colour of what is no number, or infinite: none that a scale has. */
const NOT_FINITE = packed([255, 0, 200]);

const TABLES = {
  signed: tableOf((part) => parsed(interpolateRdBu(1 - part))),
  plain: tableOf((part) => parsed(interpolateViridis(part))),
  grey: tableOf((part) => [255 * part, 255 * part, 255 * part]),
};

/** Black to white, from 0 to 1. */
export const GREY: Scale = { kind: "grey", least: 0, most: 1 };

/** Whether the numbers of a method are for the target or against it; those of saliency, if none is negative, are sizes. */
export function areSigned(method: string, values: ArrayLike<number>): boolean {
  return !/^saliency/i.test(method) || statisticsOf(values).least < 0;
}

/** The share of a large picture's numbers that may lie beyond the ends of its scale. */
const OUTLIERS = 0.005;
const LARGE = 2000;

/** Whether some numbers are so many that their outliers share a colour. */
function isClipped({ length }: ArrayLike<number>): boolean {
  return length > LARGE;
}

/** Returns that outliers of these numbers have the last colour, in words; "" where none have. */
export function clippedText(values: ArrayLike<number>): string {
  return isClipped(values) ? `The largest ${100 * OUTLIERS} % share the last colour.` : "";
}

/**
 * Returns the scale of some numbers: a signed one, if any is below zero. With `clip`, the outliers of many numbers lie
 * beyond its ends, and have their colours.
 */
export function scaleOf(values: ArrayLike<number>, signed = false, clip = false): Scale {
  const { least, most } = statisticsOf(values);
  const largest = Math.max(Math.abs(least), Math.abs(most)) || 0;
  const sizes = clip && isClipped(values) ? Float64Array.from(values, Math.abs).filter(Number.isFinite).sort() : [];
  const bound = sizes[Math.ceil((1 - OUTLIERS) * (sizes.length - 1))] || largest;
  if (!(signed || least < 0)) return { kind: "plain", least: least || 0, most: Math.min(bound, most || 0) };
  return { kind: "signed", least: -bound, most: bound };
}

/** Returns the picture of some numbers, four bytes each: red, green, blue and 255. */
export function pixelsOf(values: ArrayLike<number>, { kind, least, most }: Scale): Uint8ClampedArray<ArrayBuffer> {
  const table = TABLES[kind];
  const pixels = new Uint32Array(values.length);
  const factor = most > least ? (STEPS - 1) / (most - least) : 0;
  const none = kind === "signed" ? STEPS / 2 : 0;
  for (let index = 0; index < values.length; index++) {
    const value = values[index] ?? NaN;
    const step = factor ? Math.round(Math.min(STEPS - 1, Math.max(0, (value - least) * factor))) : none;
    pixels[index] = Number.isFinite(value) ? (table[step] ?? 0) : NOT_FINITE;
  }
  return new Uint8ClampedArray(pixels.buffer);
}

/** Returns the same picture, which lets through what is below it as far as a number is small. */
export function veilOf(values: ArrayLike<number>, scale: Scale): Uint8ClampedArray<ArrayBuffer> {
  const pixels = pixelsOf(values, scale);
  for (let index = 0; index < values.length; index++) {
    const size = Math.abs(values[index] ?? 0) / (scale.most || 1);
    pixels[4 * index + 3] = Number.isNaN(size) ? 255 : 255 * size; // a clamped array ends at 255
  }
  return pixels;
}

/** Returns the picture of an image [channels, height, width] with one or three channels, from its darkest to its brightest. */
export function imageOf(values: ArrayLike<number>, channels: number): Uint8ClampedArray<ArrayBuffer> {
  const { least, most } = statisticsOf(values);
  const size = values.length / channels;
  const pixels = new Uint8ClampedArray(4 * size);
  for (let index = 0; index < size; index++) {
    for (let colour = 0; colour < 3; colour++) {
      const value = values[(colour % channels) * size + index] ?? 0;
      pixels[4 * index + colour] = most > least ? (255 * (value - least)) / (most - least) : 0;
    }
    pixels[4 * index + 3] = 255;
  }
  return pixels;
}

/** A picture, four bytes a pixel. */
export interface Pixels {
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  readonly height: number;
  readonly width: number;
}

function tableOf(colour: (part: number) => readonly number[]): Uint32Array {
  return Uint32Array.from({ length: STEPS }, (_, step) => packed(colour(step / (STEPS - 1))));
}

/** Returns an opaque colour as a canvas has it: four bytes at once, the least first, as every browser's machine has them. */
function packed([red = 0, green = 0, blue = 0]: readonly number[]): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function parsed(colour: string): number[] {
  if (colour.startsWith("#")) return [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
  return (colour.match(/\d+/g) ?? []).map(Number);
}
