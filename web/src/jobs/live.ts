/** The way from a stored row to the live model. */

import type { ModelDetail, Question } from "@cutaway/client";
import { startOf } from "../ask/start.js";
import type { Asked } from "../state/asked.js";
import { ask, choose, draft, model } from "../state/asking.js";
import { type Draft, fromText } from "../state/draft.js";
import { models } from "../state/server.js";
import { numbers } from "../ask/arrays.js";
import { type Cells, cellsOf, columnsOf, type JobFolder, type Line, type Manifest, tensorIn } from "./folder.js";

/** Returns the served model that the job was about: of its version, if that is served; undefined if there is none. */
export function servedOf({ model, version }: Manifest): string | undefined {
  const same = models.value.filter((each) => each.model === model);
  return (same.find((each) => each.version === version) ?? same[0])?.name.replace(/^models\//, "");
}

/**
 * Asks the live model what the job asked about a row, and nothing else.
 *
 * @returns the answer; undefined if there is none, or a newer call came before it.
 */
export async function askLive({ manifest }: JobFolder, line: Line): Promise<Asked | undefined> {
  const name = servedOf(manifest);
  if (name === undefined) return undefined;
  if (model.value?.model?.name !== `models/${name}`) await choose(name);
  const detail = model.value;
  if (detail?.model?.name !== `models/${name}`) return undefined;
  const inputs = inputsOf(manifest, await cellsOf(line, columnsOf(manifest, ["input"])), detail);
  draft.value = { ...(questionOf(manifest, line) ?? startOf(detail, name)), model: name, inputs };
  return ask();
}

/** Returns the job's request with the target of a row, without the condition of its explanations; undefined if the
 * folder has no request. */
function questionOf({ question = {}, job }: Manifest, { cells }: Line): Draft | undefined {
  if (Object.keys(question).length === 0) return undefined;
  const { explainIf: _, ...rest } = fromText(JSON.stringify(question));
  const target = cells["target"];
  return {
    ...rest,
    attributionErrorsInPlace: true,
    ...(job.target === "label" && target != null
      ? { target: { kind: { case: "classIndex", value: { indices: [BigInt(Number(target))] } } } }
      : {}),
  };
}

/** Returns the inputs that a row was computed from, as far as the model has inputs of these names. */
function inputsOf({ columns }: Manifest, cells: Cells, { inputs }: ModelDetail): Question["inputs"] {
  const raw = cells["input.raw"];
  if (typeof raw === "string") return [raw];
  if (raw instanceof Uint8Array) {
    return [{ data: Uint8Array.from(raw), mediaType: columns["input.raw"]?.["media_type"] ?? "" }];
  }
  const named = Object.entries(cells).flatMap(([column, cell]) => {
    const about = columns[column] ?? {};
    const part = tensorIn(cell, about);
    const spec = inputs.find(({ name }) => name === about["input"]);
    return part && spec
      ? [[spec.name, numbers(Array.from(part.values), [1, ...part.shape], spec.dataType)] as const]
      : [];
  });
  return Object.fromEntries(named);
}
