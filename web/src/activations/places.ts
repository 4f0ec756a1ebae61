/** What was captured, and what belongs together. */

import { type Captured, HookPoint } from "@cutaway/client";
import { writes } from "../ask/ways.js";
import { axisNames, type Part } from "../measures/index.js";
import { exampleOf, type Exchange, inputsOf, rowsOf, type ViewProps, wholeOutputs } from "../state/index.js";

/** What shows one captured tensor takes. */
export interface CapturedProps extends ViewProps {
  readonly captured: Captured;
  /** Its numbers for the example that is shown. */
  readonly part: Part;
  /** What the axes of `part` are called. */
  readonly axes: readonly string[];
  /** Whether a part of it can be changed by its indices. */
  readonly changes: boolean;
}

/** Returns the gradient that was captured at an output; undefined if none was. */
export function gradientAt({ reply }: Exchange, { module, call, path }: Captured): Captured | undefined {
  return reply.captured.find(
    (each) =>
      each.module === module && each.point === HookPoint.GRAD_OUTPUT && each.call === call && each.path === path,
  );
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

/** Whether a part of what is shown can be changed by its indices: not where the page has moved an axis. */
export function canChange(asked: Exchange, captured: Captured): boolean {
  const moved = asked.reply.message.exampleAxes.some(({ tensor }) => tensor === `capture:${captured.name}`);
  return !moved && captured.tensor.shape[0] === rowsOf(asked) && wholeOutputs(asked).includes(captured);
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
  const { input_ids, attention_mask } = inputsOf(asked);
  const [ids, mask] = [input_ids, attention_mask].map((tensor) => tensor && exampleOf(asked, tensor, row).values);
  return Array.from(ids ?? [], (id, at) => (mask?.[at] === 0 ? "(padding)" : (model.labels[id] ?? `#${id}`)));
}
