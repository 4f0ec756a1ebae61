/** The image that an explanation is laid over: as the model got it. */

import { HookPoint, type Tensor } from "@cutaway/client";
import type { Part } from "../measures/numbers.js";
import { imageOf } from "../pictures/colours.js";
import { type Asked, exampleOf } from "../state/asked.js";

/** An image as pixels. */
export interface Background {
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  readonly height: number;
  readonly width: number;
}

/**
 * Returns the image among the tensors that went in: an input of the question, or what a hook saw going into the model,
 * which is the only way to know what an adapter made of a file. Undefined if there is none.
 */
export function backgroundOf(asked: Asked, row: number): Background | undefined {
  const { inputs } = asked.question;
  const sent = Array.isArray(inputs) ? [] : Object.values(inputs as Readonly<Record<string, Tensor>>);
  const seen = asked.reply.captured.filter(({ module, point }) => module === "" && point === HookPoint.INPUT);
  const image = [...sent, ...seen.map(({ tensor }) => tensor)].map((each) => exampleOf(asked, each, row)).find(isImage);
  return image && pictureOf(image);
}

/** Returns an image [channels, height, width] as pixels. */
export function pictureOf({ values, shape: [channels = 1, height = 1, width = 1] }: Part): Background {
  return { pixels: imageOf(values, channels), height, width };
}

/** Whether an example is an image [channels, height, width] with one or three channels. */
export function isImage({ shape }: Pick<Part, "shape">): boolean {
  return shape.length === 3 && (shape[0] === 1 || shape[0] === 3) && Math.min(shape[1] ?? 0, shape[2] ?? 0) > 1;
}
