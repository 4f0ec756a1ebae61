/** Places inside a model, as questions name them. */

import { create } from "@bufbuild/protobuf";
import type { HookPoint, ModelDetail } from "@cutaway/client";
import { type CaptureRequest, CaptureRequestSchema } from "@cutaway/contract/capture_pb";
import type { Module } from "@cutaway/contract/model_pb";

/** Returns the request for one point of a module or an operator, whose address has a colon. */
export function requestAt(value: string, point: HookPoint): CaptureRequest {
  const where = value.includes(":") ? { case: "op" as const, value } : { case: "module" as const, value };
  return create(CaptureRequestSchema, { where, points: [point] });
}

/** Returns the request for the gradient of a parameter, or of all that a glob names. */
export function parameterAt(value: string): CaptureRequest {
  return create(CaptureRequestSchema, { where: { case: "parameter", value } });
}

/** Returns the modules that ran for the model's own example and have no module inside, in the order of the tree. */
export function leavesOf({ modules }: ModelDetail): Module[] {
  const around = new Set(modules.map(({ name }) => name.slice(0, Math.max(0, name.lastIndexOf(".")))));
  return modules.filter(({ name, calls }) => calls > 0 && name !== "" && !around.has(name));
}
