/** A question as plain words: what Python's client and YAML call its parts. Only common parts have such words. */

import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { METHODS } from "../ask/methods.js";
import { type Draft, jsonOf } from "../state/draft.js";

/** A value that every language writes. */
export type Plain = string | number | boolean | readonly Plain[] | Fields;

/** Values by their names. */
export interface Fields {
  readonly [name: string]: Plain;
}

/** A question without its model and its inputs. */
export interface PlainQuestion {
  /** "" for the predicted class. */
  readonly target: Plain;
  /** Each with a `module`, `op` or `parameter`, and with `at` where that is not the output alone. */
  readonly captures: readonly Fields[];
  /** Each with its `method` as the contract names it, `layer_grad_cam`, and the method's own fields. */
  readonly attributions: readonly Fields[];
  /** Each with its `edit`, `zero`, with where it is, and its own fields. */
  readonly edits: readonly Fields[];
  readonly compare: boolean;
  readonly inputGradients: boolean;
  readonly errorsInPlace: boolean;
}

/** Returns the question in plain words; undefined if it has parts without any. */
export function plainOf(draft: Draft): PlainQuestion | undefined {
  const { model, target, inputGradients, attributionErrorsInPlace, ...json } = jsonOf(draft, false);
  const { captures: places, attributions: methods, edits: changes, compare = false, ...others } = json;
  const plain = targetOf((target ?? {}) as JsonObject);
  const captures = all(places, captureOf);
  const attributions = all(methods, methodOf);
  const edits = all(changes, editOf);
  const wordless = { ...others, ...(inputGradients as JsonObject | undefined) }; // named inputs have no word here
  if (!captures || !attributions || !edits || plain === undefined || Object.keys(wordless).length > 0) return undefined;
  return {
    target: plain,
    captures,
    attributions,
    edits,
    compare: compare === true,
    inputGradients: inputGradients !== undefined,
    errorsInPlace: attributionErrorsInPlace === true,
  };
}

/** Returns each part in plain words; undefined if one has none. */
function all(parts: JsonValue | undefined, wordOf: (part: JsonObject) => Fields | undefined): Fields[] | undefined {
  const words = ((parts ?? []) as JsonObject[]).map(wordOf);
  return words.every((each) => each !== undefined) ? words : undefined;
}

/** Returns a target, "" for the predicted class; undefined for one without plain words. */
function targetOf(json: JsonObject): Plain | undefined {
  const [[kind, value] = ["predictedClass", {}], ...rest] = Object.entries(json);
  const fields = value as JsonObject;
  if (rest.length > 0) return undefined;
  if (kind === "predictedClass") return "";
  if (kind === "classIndex") {
    const [first = 0, ...others] = (fields["indices"] as string[]).map(Number);
    return others.length ? [first, ...others] : first;
  }
  if (kind === "topK") return { top_k: Number(fields["k"]) };
  return kind === "sum" || (kind === "norm" && Object.keys(fields).length === 0) ? { [kind]: {} } : undefined;
}

function captureOf({ points = [], ...json }: JsonObject): Fields | undefined {
  const [[key, where] = ["", ""], ...rest] = Object.entries(json);
  if (!["module", "op", "parameter"].includes(key) || rest.length > 0) return undefined;
  const names = (points as string[]).map((point) => point.replace("HOOK_POINT_", "").toLowerCase());
  const [at = "output", ...others] = names;
  return { [key]: where as string, ...(others.length ? { at: names } : at === "output" ? {} : { at }) };
}

function editOf({ point, slices = [], ...json }: JsonObject): Fields | undefined {
  const edit = ["scale", "add", "zero", "clamp"].find((each) => each in json);
  if (edit === undefined || point !== "HOOK_POINT_OUTPUT") return undefined;
  const { [edit]: own, ...where } = json;
  const { scalar, ...fields } = own as JsonObject;
  const ranges = (slices as JsonObject[]).map(({ axis = 0, start, stop }) => [axis, start, stop].map(Number));
  const plain = { edit, ...where, ...fields, ...(scalar === undefined ? {} : { addend: scalar }) } as Fields;
  if (Object.values(plain).some((each) => typeof each === "object") || ranges.flat().some(Number.isNaN))
    return undefined;
  const named = ranges.map(([axis = 0, start = 0, stop = 0]): Fields => ({ axis, start, stop }));
  return named.length ? { ...plain, slices: named } : plain;
}

function methodOf(json: JsonObject): Fields | undefined {
  const [[name, value] = ["", {}], ...rest] = Object.entries(json);
  if (rest.length > 0 || !METHODS.some(({ field }) => field === name)) return undefined;
  const { path = {}, ...others } = value as JsonObject;
  const fields: Record<string, Plain> = { method: snake(name) };
  for (const [key, each] of Object.entries({ ...others, ...(path as JsonObject) })) {
    if (typeof each === "object") return undefined;
    fields[snake(key)] = key === "quadrature" ? String(each).replace("QUADRATURE_", "").toLowerCase() : each;
  }
  return fields;
}

/** Returns a name of JSON as the contract has it: `nSteps` as `n_steps`. */
export function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
