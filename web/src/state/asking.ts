/** Asking: the question, what is under way, and what came back. */

import { CutawayError, examplesFirst, type ModelDetail, type Question, type StreamProgress } from "@cutaway/client";
import { computed, signal } from "@preact/signals";
import { startOf } from "../ask/start.js";
import { type Draft, emptyDraft } from "./draft.js";
import { bytesOf, type Exchange, rowsOf } from "./exchange.js";
import { client, models, note, standing } from "./server.js";

/** The model that is looked at, with its module tree and operators. */
export const model = signal<ModelDetail | undefined>(undefined);

/** The name of the model whose module tree is on its way. */
export const opening = signal<string | undefined>(undefined);

/** The question as it is now. */
export const draft = signal<Draft>(emptyDraft(""));

/** The last answer. */
export const asked = signal<Exchange | undefined>(undefined);

/** When the running question was asked, as `performance.now()`; undefined if none runs. */
export const since = signal<number | undefined>(undefined);

/** How far the explanations of the running question are; undefined where nothing was told, as in the first second. */
export const progress = signal<StreamProgress | undefined>(undefined);

/** Why the last call failed. */
export const failure = signal<CutawayError | undefined>(undefined);

/** The example that is shown, from 0. */
export const row = signal(0);

/** What was asked during this visit, the newest first. */
export const history = signal<readonly Exchange[]>([]);

/** Whether the model has all inputs that it needs. */
export const complete = computed(() => {
  const { inputs } = draft.value;
  const isGiven = ({ name, optional }: ModelDetail["inputs"][number]): boolean => optional || name in (inputs ?? {});
  return Array.isArray(inputs) || (inputs !== undefined && (model.value?.inputs ?? []).every(isGiven));
});

/** The question as it is now; undefined while it lacks an input. */
export const question = computed((): Question | undefined => {
  const { inputs, ...rest } = draft.value;
  return inputs !== undefined && complete.value ? { ...rest, inputs } : undefined;
});

/** Whether the question is another one than that of the answer that is shown. */
export const changed = computed(() => {
  const [now, then] = [draft.value, asked.value?.question] as Readonly<Record<string, unknown>>[];
  return then !== undefined && Object.keys({ ...now, ...then }).some((part) => now?.[part] !== then[part]);
});

const MOST_KEPT = 20;
const MOST_KEPT_BYTES = 2 ** 28;

let running = new AbortController();
/** The question that the page began with for the model, which nobody has changed yet. */
let begun: Draft | undefined;

/** Reads the module tree of a model, and starts a question about it; or takes the one that a link brought, as it is. */
export async function choose(name: string, linked?: Draft): Promise<void> {
  await newest(async (signal) => {
    opening.value = name;
    const detail = await detailOf(name, signal);
    signal.throwIfAborted();
    begun = startOf(detail, name);
    draft.value = linked ?? begun;
    asked.value = undefined;
    model.value = detail; // the last, since the address follows it
  });
}

/** Reads the model again for another caller, who may see more of it, or less; or another one, where that may not see it. */
export async function reopen(): Promise<void> {
  const { model: name } = draft.value;
  if (model.value === undefined || standing.value.kind !== "ready") return;
  if (!models.value.some((each) => [each.model, each.name.replace(/^models\//, "")].includes(name))) {
    model.value = asked.value = undefined;
    history.value = [];
    return choose(models.value[0]?.model ?? name);
  }
  await newest(async (signal) => {
    const detail = await detailOf(name, signal);
    signal.throwIfAborted();
    const isSame = (each: Exchange): boolean => each.model.model?.name === detail.model?.name;
    const seen = history.value.map((each) => (isSame(each) ? { ...each, model: detail } : each));
    asked.value = asked.value && seen[history.value.indexOf(asked.value)];
    history.value = seen;
    if (draft.value === begun) draft.value = begun = startOf(detail, name);
    model.value = detail;
  });
}

/** Reads what a model is; without its operators and its example, where the caller may not see them. */
async function detailOf(name: string, signal: AbortSignal): Promise<ModelDetail> {
  const read = (all: boolean): Promise<ModelDetail> =>
    client.value.model(name, { operators: all, example: all, signal });
  return read(true).catch((error: unknown) => {
    if (error instanceof CutawayError && error.reason === "SCOPE_MISSING") return read(false);
    throw error;
  });
}

/** Other parts of a question; those that are undefined are no longer in it. */
export type Change = { readonly [Part in keyof Draft]?: Draft[Part] | undefined };

/** Changes parts of the question, without asking. */
export function alter(parts: Change): void {
  const changed = { ...draft.value, ...parts };
  const agreement = (changed.attributions?.length ?? 0) > 1 || undefined;
  const all = Object.entries({ ...changed, agreement });
  draft.value = Object.fromEntries(all.filter(([, part]) => part !== undefined)) as unknown as Draft;
  failure.value = undefined; // it was about the question before
}

/**
 * Asks the question, with these parts changed; a newer call ends the one before.
 *
 * @returns the answer; undefined if there is none, or a newer call came before it.
 */
export async function ask(change: Change = {}): Promise<Exchange | undefined> {
  alter(change);
  const [now, detail] = [question.value, model.value];
  if (!now) failure.value = new CutawayError("INPUT_MISSING", "give the model all its inputs", "tensors");
  if (!now || detail === undefined) return undefined;
  return newest(async (signal) => {
    const began = performance.now();
    since.value = began;
    const show = (answering: ModelDetail, reply: Exchange["reply"], whole: boolean): Exchange => {
      const milliseconds = performance.now() - began;
      const answer = { model: answering, question: now, reply, whole, milliseconds, when: new Date() };
      asked.value = answer;
      row.value = Math.min(row.value, Math.max(0, rowsOf(answer) - 1));
      return answer;
    };
    const onProgress = (told: StreamProgress): void => {
      if (!signal.aborted) progress.value = told;
    };
    const stream = client.value.inspectStream(now, { signal, onProgress });
    for await (const part of stream) {
      signal.throwIfAborted();
      show(detail, examplesFirst(part), false);
    }
    const reply = examplesFirst(await stream.result());
    signal.throwIfAborted();
    const weights = reply.message.provenance?.weightsSha256 ?? "";
    const isSame = ["", detail.provenance?.weightsSha256].includes(weights);
    const answering = isSame ? detail : await detailOf(now.model, signal); // the server has another one of this name now
    signal.throwIfAborted();
    model.value = answering;
    const answer = show(answering, reply, true);
    history.value = kept([answer, ...history.value]);
    return answer;
  });
}

/** Runs a call, which ends the one before; returns undefined where it fails, or a newer one ends it. */
async function newest<T>(call: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
  cancel();
  const { signal } = running;
  failure.value = undefined;
  try {
    return await call(signal);
  } catch (error) {
    if (!signal.aborted) failure.value = note(error);
    return undefined;
  } finally {
    if (!signal.aborted) since.value = opening.value = progress.value = undefined;
  }
}

/** Ends the running call. */
export function cancel(): void {
  running.abort();
  running = new AbortController();
  since.value = opening.value = progress.value = undefined;
}

/** Shows an earlier question with its answer. */
export function recall(earlier: Exchange): void {
  cancel();
  model.value = earlier.model;
  draft.value = earlier.question;
  asked.value = earlier;
  failure.value = undefined;
  row.value = 0;
}

/** Returns as many as fit into the memory that a page may take. */
function kept(answers: readonly Exchange[]): readonly Exchange[] {
  let bytes = 0;
  return answers.slice(0, MOST_KEPT).filter(({ reply }, index) => {
    const { captures, inputGradients, parameterGradients, attributions } = reply;
    const numbers = bytesOf(captures, inputGradients, parameterGradients, ...attributions.map(({ values }) => values));
    bytes += 2 * numbers; // the message has them too
    return index === 0 || bytes <= MOST_KEPT_BYTES;
  });
}
