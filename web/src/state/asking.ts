/** Asking: the question, what is under way, and what came back. */

import { computed, signal } from "@preact/signals";
import { CutawayError, type Inspection, type ModelDetail, type Question } from "@cutaway/client";
import { type Asked, rowsOf } from "./asked.js";
import { type Draft, emptyDraft } from "./draft.js";
import { client, note } from "./server.js";
import { startOf } from "../ask/start.js";

/** The model that is looked at, with its module tree and operators. */
export const model = signal<ModelDetail | undefined>(undefined);

/** The name of the model whose module tree is on its way. */
export const opening = signal<string | undefined>(undefined);

/** The question as it is now. */
export const draft = signal<Draft>(emptyDraft(""));

/** The last answer. */
export const asked = signal<Asked | undefined>(undefined);

/** When the running question was asked, as `performance.now()`; undefined if none runs. */
export const since = signal<number | undefined>(undefined);

/** Why the last call failed. */
export const failure = signal<CutawayError | undefined>(undefined);

/** The example that is shown, from 0. */
export const row = signal(0);

/** What was asked during this visit, the newest first. */
export const history = signal<readonly Asked[]>([]);

/** Whether the model has inputs to run on. */
export const complete = computed(() => draft.value.inputs !== undefined);

const MOST_KEPT = 20;
const MOST_KEPT_BYTES = 2 ** 28;

let running = new AbortController();

/** Reads the module tree of a model, and starts a question about it; or keeps the one that a link brought. */
export async function choose(name: string, linked?: Draft): Promise<void> {
  cancel();
  const call = running;
  opening.value = name;
  failure.value = undefined;
  try {
    const detail = await client.value.model(name, { operators: true, example: true, signal: call.signal });
    if (call.signal.aborted) return;
    model.value = detail;
    draft.value = { ...startOf(detail, name), ...linked };
    asked.value = undefined;
  } catch (error) {
    if (!call.signal.aborted) failure.value = note(error);
  } finally {
    if (!call.signal.aborted) opening.value = undefined;
  }
}

/** Changes parts of the question, without asking. */
export function alter(parts: Partial<Draft>): void {
  draft.value = { ...draft.value, ...parts };
}

/**
 * Asks the question, with these parts changed; a newer call ends the one before.
 *
 * @returns the answer; undefined if there is none, or a newer call came before it.
 */
export async function ask(change: Partial<Question> = {}): Promise<Asked | undefined> {
  alter(change);
  const { inputs, ...rest } = draft.value;
  const detail = model.value;
  if (inputs === undefined || detail === undefined) return undefined;
  const question: Question = { ...rest, inputs };
  const call = renewed();
  const began = performance.now();
  since.value = began;
  failure.value = undefined;
  try {
    const reply = await client.value.inspect(question, { signal: call.signal });
    if (call.signal.aborted) return undefined;
    const answer = { model: detail, question, reply, milliseconds: performance.now() - began };
    show(answer);
    return answer;
  } catch (error) {
    if (!call.signal.aborted) failure.value = note(error);
    return undefined;
  } finally {
    if (!call.signal.aborted) since.value = undefined;
  }
}

/** Ends the running question. */
export function cancel(): void {
  renewed();
  since.value = undefined;
}

/** Shows an earlier question with its answer. */
export function recall(earlier: Asked): void {
  cancel();
  model.value = earlier.model;
  draft.value = earlier.question;
  asked.value = earlier;
  failure.value = undefined;
  row.value = 0;
}

function show(answer: Asked): void {
  asked.value = answer;
  row.value = Math.min(row.value, Math.max(0, rowsOf(answer) - 1));
  history.value = kept([answer, ...history.value]);
}

/** Returns as many as fit into the memory that a page may take. */
function kept(answers: readonly Asked[]): readonly Asked[] {
  let bytes = 0;
  return answers.slice(0, MOST_KEPT).filter(({ reply }, index) => {
    bytes += bytesOf(reply);
    return index === 0 || bytes <= MOST_KEPT_BYTES;
  });
}

/** Returns the bytes of all captures of a reply, which are what is large in it. */
function bytesOf({ captures }: Inspection): number {
  return Object.values(captures).reduce((sum, { data }) => sum + data.byteLength, 0);
}

function renewed(): AbortController {
  running.abort();
  running = new AbortController();
  return running;
}
