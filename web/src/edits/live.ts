/** Trying a change: each newer one ends the call before; when it rests, what it did downstream is asked for. */

import { byName, examplesFirst, type Inspection, type Question } from "@cutaway/client";
import { effect, signal } from "@preact/signals";
import type { Named } from "../pictures/Bars.js";
import { asked, client, type Exchange, failure, go, model, note, rowsOf } from "../state/index.js";
import { changesBetween, layersBelow } from "./downstream.js";
import { type EditDraft, editOf, type EditTarget, unchanged } from "./edit.js";

/** Predictions before and after a change to an answer's question, and milliseconds from the slider to the latter. */
export type Tried = Readonly<{ asked: Exchange; change: EditDraft; before: Outputs; after: Outputs }> &
  Readonly<{ milliseconds: number }>;

type Outputs = Inspection["predictions"];

/** The change that is tried; undefined before one is chosen. */
export const wanted = signal<EditDraft>();

/** What came of it. */
export const tried = signal<Tried>();

/** How far it changed the other layers, in the order of the tree; not fresh while a newer change is asked about. */
export const downstream = signal<{ readonly changes: readonly Named[]; readonly fresh: boolean }>();

/** Opens a change at a place, which changes nothing yet. */
export function tryAt(place: EditTarget): void {
  wanted.value = unchanged(place);
  go("edits");
}

/** Opens the change that sets a part of a place to zero; `at` are its indices behind the batch. */
export function tryWithout(place: EditTarget, at: EditDraft["at"]): void {
  wanted.value = { place, verb: "zero", amount: 0, at };
  go("edits");
}

/** How long a slider must rest before the layers are asked for. */
const REST_MS = 250;

effect(() => {
  if (model.value !== undefined) wanted.value = undefined; // what was chosen was for the model before
});

let unedited: { readonly asked: Exchange; readonly reply: Promise<Inspection> } | undefined;

/** Tries changes as they are chosen, until the function that it returns is called. */
export function follow(): () => void {
  return effect(() => {
    const change = wanted.value;
    const answer = asked.value?.whole ? asked.value : undefined; // one that still grows is another one soon
    if (tried.peek()?.asked !== answer) tried.value = downstream.value = undefined; // what came of it was for another question
    if (change === undefined || answer === undefined) return;
    const running = new AbortController();
    void attempt(change, answer, running.signal);
    return (): void => running.abort();
  });
}

async function attempt(change: EditDraft, answer: Exchange, signal: AbortSignal): Promise<void> {
  const began = performance.now();
  const { model, inputs, arguments: given, edits = [] } = answer.question;
  const bare: Question = { model, inputs, edits, ...(given ? { arguments: given } : {}) };
  const edited: Question = { ...bare, edits: [...edits, editOf(change)] };
  try {
    const { predictions: after, message } = await client.value.inspect({ ...edited, compare: true }, { signal });
    if (signal.aborted) return;
    failure.value = undefined;
    const before = edits.length ? answer.reply.predictions : byName(message.uneditedPredictions?.outputs ?? []);
    tried.value = { asked: answer, change, before, after, milliseconds: performance.now() - began };
    if (downstream.value?.fresh) downstream.value = { ...downstream.value, fresh: false };
    await new Promise((resume) => setTimeout(resume, REST_MS));
    signal.throwIfAborted();
    const all = layersBelow(answer.model, rowsOf(answer));
    const layers = (question: Question, captures: string[], options = {}): Promise<Inspection> =>
      client.value.inspect({ ...question, captures }, options).then(examplesFirst);
    if (unedited?.asked !== answer) {
      unedited = { asked: answer, reply: layers(bare, all) };
      unedited.reply.catch(() => (unedited = undefined)); // the next change asks again
    }
    const others = all.filter((name) => name !== (change.place.address || "."));
    const [one, other] = await Promise.all([unedited.reply, layers(edited, others, { signal })]);
    signal.throwIfAborted();
    downstream.value = { changes: changesBetween(one.captures, other.captures), fresh: true };
  } catch (error) {
    if (signal.aborted) return;
    failure.value = note(error);
    downstream.value = undefined;
    if (tried.value?.change !== change) tried.value = undefined; // it belongs to another change
  }
}
