/** What was captured, and what belongs together. */

import { type Captured, HookPoint } from "@cutaway/client";
import { writes } from "../ask/ways.js";
import { axisNames, layoutOf, type Part, partsOf, placeOf, planeOf, statisticsOf } from "../measures/index.js";
import { exampleOf, type Exchange, gradientOf, rowsOf, type ViewProps, wholeOutputs } from "../state/index.js";
import { short } from "../ui/index.js";

/** What shows one captured tensor takes. */
export interface CapturedProps extends ViewProps {
  readonly captured: Captured;
  /** Its numbers for the example that is shown. */
  readonly part: Part;
  /** What the axes of `part` are called. */
  readonly axes: readonly string[];
}

/** Orders of channels. */
export const ORDERS = { index: "index", mean: "mean", norm: "norm", effect: "effect on the target" } as const;

/** An order of channels. */
export type Order = keyof typeof ORDERS;

/** A channel, and the number that it is sorted by; none where it is sorted by its index. */
export interface Channel {
  readonly index: number;
  readonly value?: number | undefined;
}

/** Returns the gradient that was captured at an output; undefined if none was. */
export function gradientAt({ reply }: Exchange, { module, call, path }: Captured): Captured | undefined {
  return reply.captured.find(
    (each) =>
      each.module === module && each.point === HookPoint.GRAD_OUTPUT && each.call === call && each.path === path,
  );
}

/** Returns it for one example, where a part of the output can be changed; undefined otherwise. */
export function effectGradient(asked: Exchange, captured: Captured, row: number): Part | undefined {
  const gradient = canChange(asked, captured) ? gradientAt(asked, captured) : undefined;
  return gradient && gradientOf(asked, gradient.tensor, row);
}

/** Returns what the axes of one example of a captured tensor are called. */
export function axesAt({ model, reply }: Exchange, captured: Captured, { shape }: Part): readonly string[] {
  const { module, name: place, point, tensor } = captured;
  if (shape === tensor.shape) return shape.map((_, axis) => `axis ${axis}`);
  if (shape.length === ATTENTION.length && place.includes(":attention_weights#")) return ATTENTION;
  const type = model.modules.find(({ name }) => name === module)?.type;
  const ofGradient = point === HookPoint.GRAD_INPUT || point === HookPoint.GRAD_OUTPUT;
  return ofGradient && reply.message.predictions?.targetsPerExample
    ? ["target", ...axisNames(shape.length - 1, type)]
    : axisNames(shape.length, type);
}

/** What the axes of the weights of an attention are called. */
const ATTENTION = ["head", "query", "key"];

/** Returns what a part is called: `channel 5`. */
export function partText(axes: readonly string[], part: Pick<Part, "shape">, index: number): string {
  return placeOf(part, index)
    .map((at, axis) => `${axes[axis] ?? ""} ${at}`)
    .join(", ");
}

/** Returns the part of a captured output with the largest effect on the target, in words; "" if that is not known. */
export function strongestText(asked: Exchange, captured: Captured, row: number): string {
  const gradient = effectGradient(asked, captured, row);
  if (!gradient) return "";
  const part = exampleOf(asked, captured.tensor, row);
  const [first] = ordered(part, "effect", gradient);
  return first ? `${partText(axesAt(asked, captured, part), part, first.index)}: ${short(first.value ?? NaN)}` : "";
}

/** Whether a part of what is shown can be changed by its indices: not where the page has moved an axis. */
export function canChange(asked: Exchange, captured: Captured): boolean {
  const moved = asked.reply.message.exampleAxes.some(({ tensor }) => tensor === `capture:${captured.name}`);
  return !moved && captured.tensor.shape[0] === rowsOf(asked) && wholeOutputs(asked).includes(captured);
}

/**
 * Returns the channels in an order, the largest first but for the index. The effect of a channel is the sum of
 * gradient × activation: what the target would lose, to first order, if the channel were zero.
 */
export function ordered(part: Part, order: Order, gradient: Part | undefined): Channel[] {
  const channels = Array.from({ length: partsOf(layoutOf(part.shape)) }, (_, index): Channel => {
    return { index, value: measureOf(planeOf(part, index), order, gradient && planeOf(gradient, index)) };
  });
  const size = ({ value = 0 }: Channel): number => (Number.isNaN(value) ? Infinity : Math.abs(value));
  return channels.sort((one, other) => size(other) - size(one) || one.index - other.index);
}

/** Returns the sum of gradient × activation. */
export function effectOf({ values }: Part, gradient: Part): number {
  let sum = 0;
  for (let index = 0; index < values.length; index++) {
    const slope = gradient.values[index] ?? 0;
    if (slope !== 0) sum += slope * (values[index] ?? 0); // a mask of infinities has no effect
  }
  return sum;
}

function measureOf(plane: Part, order: Order, gradient: Part | undefined): number | undefined {
  if (order === "index") return undefined;
  if (order === "effect") return gradient && effectOf(plane, gradient);
  const found = statisticsOf(plane.values);
  return order === "mean" ? found.mean : found.norm;
}

/**
 * Returns the texts of the tokens that a model read: those of an explanation, or of the ids that were captured at the
 * input of a model that writes texts, whose classes are its tokens; none where neither is known.
 */
export function tokensOf(asked: Exchange, row: number): readonly string[] {
  const { model, reply } = asked;
  const explained = reply.attributions.map(({ message }) => message.tokens?.texts[row]?.tokens ?? []);
  const found = explained.find((each) => each.length);
  if (found || !writes(model)) return found ?? [];
  const [ids, mask] = ["input_ids", "attention_mask"].map((name) => {
    const seen = reply.captured.find(
      ({ module, point, path }) => !module && point === HookPoint.INPUT && path === name,
    );
    return seen && exampleOf(asked, seen.tensor, row).values;
  });
  return Array.from(ids ?? [], (id, at) => (mask?.[at] === 0 ? "(padding)" : (model.labels[id] ?? `#${id}`)));
}
