/** What every view shows: a question, and what came back. */

import type { Inspection, ModelDetail, Question, Tensor } from "@cutaway/client";

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

/** Returns what gradients of an answer are of, in words. */
export function targetText({ model, reply }: Asked, row: number): string {
  const { predictions } = reply.message;
  const index = predictions?.targets[row];
  if (index === undefined || predictions?.targetsPerExample) return "the target that was asked for";
  return `the ${reply.classes.length ? "logit of" : "output"} “${model.labels[Number(index)] ?? String(index)}”`;
}

/** Returns the bytes of the numbers of all these tensors. */
export function bytesOf(...parts: readonly Readonly<Record<string, Tensor>>[]): number {
  return parts.flatMap((tensors) => Object.values(tensors)).reduce((sum, { data }) => sum + data.byteLength, 0);
}
