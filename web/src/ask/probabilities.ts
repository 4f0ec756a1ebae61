/** A prediction as people compare it: one number for each class, or element. */

import type { Inspection, Tensor } from "@cutaway/client";
import { statisticsOf } from "../measures/index.js";
import type { Named } from "../pictures/Bars.js";
import { askedParts, exampleOf, type Exchange, targetOf } from "../state/index.js";
import { distinct } from "../ui/index.js";

/** One class, or one element of an output. */
export interface Bar extends Named {
  readonly index: number;
}

const MOST = 10;

/** Returns the outputs in the order of the model, which keys of an object lose where they are numbers. */
export function outputsOf({ message, predictions }: Inspection): [string, Tensor][] {
  return (message.predictions?.outputs ?? []).flatMap(({ name }) => {
    const output = predictions[name];
    return output ? [[name, output]] : [];
  });
}

/** Returns the softmax of logits. */
export function softmax(logits: readonly number[]): number[] {
  const { most } = statisticsOf(logits);
  const powers = logits.map((each) => Math.exp(each - most));
  const sum = powers.reduce((total, each) => total + each, 0);
  return powers.map((each) => each / sum);
}

/** Whether an output is the logits of classes: the first one, of a model that has classes. */
export function areLogits({ reply }: Exchange, name: string): boolean {
  return reply.classes.length > 0 && name === (reply.message.predictions?.outputs[0]?.name ?? name);
}

/** Returns the elements of one example of an output. */
export function rowOf(asked: Exchange, output: Tensor, row: number): number[] {
  return Array.from(exampleOf(asked, output, row).values);
}

/**
 * Returns the most probable classes of one example, the largest first; of an output that is no logits, the first
 * elements, and above them the one that is explained, if it is none of them.
 */
export function barsOf(asked: Exchange, name: string, output: Tensor, row: number): Bar[] {
  const { labels } = asked.model;
  const elements = rowOf(asked, output, row);
  if (!areLogits(asked, name)) {
    const isTarget = (askedParts(asked.question).target?.output || outputsOf(asked.reply)[0]?.[0]) === name;
    const explained = isTarget ? targetOf(asked, row) : undefined;
    const nameOf = (index: number): string =>
      elements.length === 1 ? name : `${index}${index === explained ? ", explained" : ""}`;
    const bars = elements.map((value, index) => ({ index, name: nameOf(index), value }));
    const hidden = bars.slice(MOST).filter(({ index }) => index === explained);
    return [...hidden, ...bars].slice(0, MOST);
  }
  const best = softmax(elements)
    .map((value, index) => ({ index, value }))
    .sort((one, other) => other.value - one.value)
    .slice(0, MOST);
  const names = distinct(best.map(({ index }) => labels[index] ?? `${index}`));
  return best.map((bar, at) => ({ ...bar, name: names[at] ?? "" }));
}
