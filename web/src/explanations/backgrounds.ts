/** The image that an explanation is laid over: as the model got it. */

import { HookPoint, type Tensor } from "@cutaway/client";
import type { Part } from "../measures/numbers.js";
import { imageOf, type Pixels } from "../pictures/colours.js";
import { type Asked, exampleOf } from "../state/asked.js";
import { tensorsIn } from "../state/draft.js";

/**
 * Returns the image that an explanation of an input or a layer is laid over: as it was sent, or as a hook saw it going
 * into the model, which is the only way to know what an adapter made of a file. Undefined if there is none.
 */
export function backgroundOf(asked: Asked, row: number, name: string): Pixels | undefined {
  const seen = asked.reply.captured.filter(({ module, point }) => module === "" && point === HookPoint.INPUT);
  const known = seen.map(({ path, tensor }): [string, Tensor] => [path, tensor]);
  const inputs = [...Object.entries(tensorsIn(asked.question)), ...known];
  const parts = inputs.map(([input, tensor]) => [input, exampleOf(asked, tensor, row)] as const);
  return imageFor(name, parts);
}

/** Returns the image that belongs to a name: the input itself, or for a layer the first image among the inputs. */
export function imageFor(name: string, inputs: readonly (readonly [string, Part])[]): Pixels | undefined {
  const own = inputs.filter(([input]) => input === name);
  const image = (own.length ? own : inputs).map(([, part]) => part).find(isImage);
  return image && pictureOf(image);
}

/** Returns an image [channels, height, width] as pixels. */
export function pictureOf({ values, shape: [channels = 1, height = 1, width = 1] }: Part): Pixels {
  return { pixels: imageOf(values, channels), height, width };
}

/** Whether an example is an image [channels, height, width] with one or three channels. */
export function isImage({ shape }: Pick<Part, "shape">): boolean {
  return shape.length === 3 && (shape[0] === 1 || shape[0] === 3) && Math.min(shape[1] ?? 0, shape[2] ?? 0) > 1;
}
