/** A question as plain words: what Python's client and YAML call its parts. Only common parts have such words. */

import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { type Draft, jsonOf } from "../state/draft.js";

/** A value that every language writes. */
export type Plain = string | number | boolean | readonly Plain[] | { readonly [name: string]: Plain };

/** A capture. */
export interface PlainCapture {
  readonly key: "module" | "op" | "parameter";
  readonly where: string;
  readonly at: readonly string[];
}

/** A method with its fields. */
export interface PlainMethod {
  /** Its name in the contract: `layer_grad_cam`. */
  readonly name: string;
  readonly fields: Readonly<Record<string, Plain>>;
}

/** A question without its inputs. */
export interface PlainQuestion {
  readonly model: string;
  readonly target?: Plain;
  readonly captures: readonly PlainCapture[];
  readonly methods: readonly PlainMethod[];
  readonly inputGradients: boolean;
  readonly errorsInPlace: boolean;
}

const KNOWN = ["model", "target", "captures", "attributions", "inputGradients", "attributionErrorsInPlace"];

/** Returns the question in plain words; undefined if it has parts without any. */
export function plainOf(draft: Draft): PlainQuestion | undefined {
  const json = jsonOf(draft, false);
  const list = (key: string): JsonObject[] => (json[key] ?? []) as JsonObject[];
  const target = targetOf((json["target"] ?? {}) as JsonObject);
  const captures = list("captures")
    .map(captureOf)
    .filter((each) => each !== undefined);
  const methods = list("attributions")
    .map(methodOf)
    .filter((each) => each !== undefined);
  const all = captures.length === list("captures").length && methods.length === list("attributions").length;
  const named = ((json["inputGradients"] ?? {}) as JsonObject)["inputs"] !== undefined;
  if (!all || named || target === undefined || !Object.keys(json).every((key) => KNOWN.includes(key))) return undefined;
  return {
    model: draft.model,
    ...(target === "" ? {} : { target }),
    captures,
    methods,
    inputGradients: json["inputGradients"] !== undefined,
    errorsInPlace: json["attributionErrorsInPlace"] === true,
  };
}

function captureOf({ points = [], ...json }: JsonObject): PlainCapture | undefined {
  const [[key, where] = ["", ""], ...rest] = Object.entries(json);
  if ((key !== "module" && key !== "op" && key !== "parameter") || rest.length > 0) return undefined;
  const at = (points as string[]).map((point) => point.replace("HOOK_POINT_", "").toLowerCase());
  return { key, where: where as string, at };
}

/** Returns "" for the predicted class; undefined for a target without plain words. */
function targetOf(json: JsonObject): Plain | undefined {
  const [[kind, value] = ["", undefined], ...rest] = Object.entries(json);
  if (rest.length > 0) return undefined;
  if (kind === "" || kind === "predictedClass") return "";
  if (kind === "classIndex") {
    const indices = (value as { indices: string[] }).indices.map(Number);
    return indices.length === 1 ? (indices[0] ?? 0) : indices;
  }
  if (kind === "topK") return { top_k: Number((value as JsonObject)["k"]) };
  if (kind === "sum" || (kind === "norm" && Object.keys(value as JsonObject).length === 0)) return { [kind]: {} };
  return undefined;
}

const OF_ATTRIBUTION = ["target", "inputs", "noiseTunnel", "metrics"];

function methodOf(json: JsonObject): PlainMethod | undefined {
  const [[name, value] = ["", {}], ...rest] = Object.entries(json);
  if (name === "" || rest.length > 0 || OF_ATTRIBUTION.includes(name)) return undefined;
  const fields = fieldsOf(value as JsonObject);
  return fields && { name: snake(name), fields };
}

function fieldsOf(json: JsonObject): Record<string, Plain> | undefined {
  const fields: Record<string, Plain> = {};
  for (const [name, value] of Object.entries(json)) {
    if (name === "path") {
      const inside = fieldsOf(value as JsonObject);
      if (inside === undefined) return undefined;
      Object.assign(fields, inside);
    } else if (isPlain(value))
      fields[snake(name)] = name === "quadrature" ? value.replace("QUADRATURE_", "").toLowerCase() : value;
    else return undefined;
  }
  return fields;
}

function isPlain(value: JsonValue): value is string {
  return typeof value !== "object";
}

/** Returns a name of JSON as the contract has it: `nSteps` as `n_steps`. */
export function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
