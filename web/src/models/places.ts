/** Places inside a model, as questions name them. */

import { create, equals } from "@bufbuild/protobuf";
import type { HookPoint, ModelDetail, Question } from "@cutaway/client";
import { type CaptureRequest, CaptureRequestSchema } from "@cutaway/contract/capture_pb";
import type { Module } from "@cutaway/contract/model_pb";
import { askedParts } from "../state/index.js";

/** Returns where a module is, "" for the model itself, or an operator, whose address ends with its number. */
export function whereIs(value: string): { case: "module" | "op"; value: string } {
  return { case: /:[^:.#]+#[\d*?]+$/.test(value) ? "op" : "module", value: value || "." };
}

/** Returns the request for one point of a module or an operator. */
export function requestAt(value: string, point: HookPoint): CaptureRequest {
  return create(CaptureRequestSchema, { where: whereIs(value), points: [point] });
}

/** Returns the request for the gradient of a parameter, or of all that a glob names. */
export function parameterAt(value: string): CaptureRequest {
  return create(CaptureRequestSchema, { where: { case: "parameter", value } });
}

/** Returns the change of a question that asks for more, and keeps what it captures. */
export function capturing({ captures = [] }: Pick<Question, "captures">, ...more: CaptureRequest[]): Partial<Question> {
  const own = askedParts({ model: "", captures }).captures;
  const isOwn = (one: CaptureRequest): boolean => own.some((each) => equals(CaptureRequestSchema, each, one));
  return { captures: [...captures, ...more.filter((each) => !isOwn(each))] };
}

/**
 * Returns the modules that have none inside, in the order of the tree: those that returned tensors for the model's own
 * example, if it has one; the model itself, if it has no others.
 */
export function leavesOf({ modules }: Pick<ModelDetail, "modules">): Module[] {
  const ran = modules.filter(({ outputShapes }) => outputShapes.length > 0);
  const known = ran.length ? ran : modules;
  const around = new Set(
    known.flatMap(({ name }) => [...name.matchAll(/\./g)].map(({ index }) => name.slice(0, index))),
  );
  const leaves = known.filter(({ name }) => name !== "" && !around.has(name));
  return leaves.length ? leaves : known.slice(0, 1);
}

/** Returns the modules of the outermost list of several, such as the blocks of a transformer; none where there is no list. */
export function blocksOf({ modules }: Pick<ModelDetail, "modules">): string[] {
  const depth = (name: string): number => name.split(".").length;
  const names = modules.map(({ name }) => name);
  const [second] = names.filter((name) => name.endsWith(".1")).sort((one, other) => depth(one) - depth(other));
  const list = second?.slice(0, -1);
  return list ? names.filter((name) => name.startsWith(list) && /^\d+$/.test(name.slice(list.length))) : [];
}

/** Returns `most` of `all` at most, evenly chosen from the first to the last: what is deep is not left out. */
export function spread<Item>(all: readonly Item[], most: number): Item[] {
  if (all.length <= most) return [...all];
  const chosen = new Set(
    Array.from({ length: most }, (_, at) => Math.round((at * (all.length - 1)) / (most - 1 || 1))),
  );
  return all.filter((_, index) => chosen.has(index));
}
