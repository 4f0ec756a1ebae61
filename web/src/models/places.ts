/** Places inside a model, as questions name them. */

import { create } from "@bufbuild/protobuf";
import type { HookPoint, ModelDetail, Question } from "@cutaway/client";
import { type CaptureRequest, CaptureRequestSchema } from "@cutaway/contract/capture_pb";
import type { Module } from "@cutaway/contract/model_pb";

/** Returns where a module is, or an operator, whose address ends with its number: `layer3.1:relu#0`. */
export function whereIs(value: string): { case: "module" | "op"; value: string } {
  return { case: /:[^:.#]+#[\d*?]+$/.test(value) ? "op" : "module", value };
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
  return { captures: [...captures, ...more] };
}

/**
 * Returns the modules that have none inside, in the order of the tree: those that returned tensors for the model's own
 * example, if it has one; the model itself, if it has no others.
 */
export function leavesOf({ modules }: Pick<ModelDetail, "modules">): Module[] {
  const around = new Set(modules.map(({ name }) => name.slice(0, Math.max(0, name.lastIndexOf(".")))));
  const ran = modules.filter(({ outputShapes }) => outputShapes.length > 0);
  const known = ran.length ? ran : modules;
  const leaves = known.filter(({ name }) => name !== "" && !around.has(name));
  return leaves.length ? leaves : known.slice(0, 1);
}
