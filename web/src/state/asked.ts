/** What every view shows: a question, and what came back. */

import {
  type Captured,
  HookPoint,
  type Inspection,
  type ModelDetail,
  type Question,
  type Tensor,
} from "@cutaway/client";
import { messageOf, tensorsIn } from "./draft.js";
import { type Part, partOf, sizeOf } from "../measures/numbers.js";

/** A question with its answer. */
export interface Asked {
  /** The model that was asked, with its module tree. */
  readonly model: ModelDetail;
  readonly question: Question;
  readonly reply: Inspection;
  /** Milliseconds from the call to the decoded reply, as this page saw them. */
  readonly milliseconds: number;
}

/** What every view takes. */
export interface ViewProps {
  readonly asked: Asked;
  /** The example that is shown, from 0. */
  readonly row: number;
  /** Asks again with these parts of the question changed; a newer call ends the one before. */
  readonly ask: (change: Partial<Question>) => void;
}

/** Returns how many examples an answer is about. */
export function rowsOf({ question, reply: { classes, predictions } }: Asked): number {
  const tensors = [...Object.values(predictions), ...Object.values(tensorsIn(question))];
  const [first = 1] = tensors.find(({ shape }) => shape.length)?.shape ?? [question.inputs.length];
  return classes.length || Number(first);
}

/** Returns what was captured at outputs, as far as the question left it whole. */
export function wholeOutputs({ question, reply }: Pick<Asked, "question" | "reply">): Captured[] {
  const whole = messageOf(question).captures.every(
    ({ reduction, slices, call }) => reduction === undefined && slices.length === 0 && call === undefined,
  );
  return whole ? reply.captured.filter(({ point }) => point === HookPoint.OUTPUT) : [];
}

/** Returns one example of a tensor of an answer. */
export function exampleOf(asked: Asked, tensor: Tensor, row: number): Part {
  return partOf(tensor, row, rowsOf(asked));
}

/** Returns one example of a gradient, of the largest target where there are several. */
export function gradientOf(asked: Asked, tensor: Tensor, row: number): Part {
  const { values, shape } = exampleOf(asked, tensor, row);
  if (!asked.reply.message.predictions?.targetsPerExample) return { values, shape };
  return { values: values.subarray(0, sizeOf(shape.slice(1))), shape: shape.slice(1) };
}

/** Returns what gradients of an answer are of, in words. */
export function targetText({ model, reply: { message, classes } }: Asked, row: number): string {
  const { targets = [], targetsPerExample = 0 } = message.predictions ?? {};
  const index = targets[row * Math.max(1, targetsPerExample)];
  if (index === undefined) return "the target that was asked for";
  return `the ${classes.length ? "logit of" : "output"} “${model.labels[Number(index)] ?? String(index)}”`;
}

/** Returns the bytes of the numbers of all these tensors. */
export function bytesOf(...parts: readonly Readonly<Record<string, Tensor>>[]): number {
  return parts.flatMap((tensors) => Object.values(tensors)).reduce((sum, { data }) => sum + data.byteLength, 0);
}
