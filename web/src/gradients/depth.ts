/** Where gradients vanish: how large they are, layer by layer. */

import { create } from "@bufbuild/protobuf";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import { type CaptureRequest, CaptureRequestSchema } from "@cutaway/contract/capture_pb";
import { numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import type { Asked } from "../state/asked.js";

/** The most layers that are asked for at once. */
const MOST = 128;

/** A layer, and how large the gradient is there. */
export interface Depth {
  readonly name: string;
  /** The root of the mean square, which does not grow with the layer's size. */
  readonly size: number;
}

/** Returns requests for the gradient at the output of every module that ran and has no module inside. */
export function gradientsEverywhere({ modules }: ModelDetail): CaptureRequest[] {
  const names = modules.map(({ name }) => name);
  return modules
    .filter(({ name, calls }) => name && calls > 0 && !names.some((each) => each.startsWith(`${name}.`)))
    .slice(0, MOST)
    .map(({ name }) =>
      create(CaptureRequestSchema, { where: { case: "module", value: name }, points: [HookPoint.GRAD_OUTPUT] }),
    );
}

/** Returns the captured gradients in the order of the model's modules. */
export function depthsOf({ model, reply }: Asked): Depth[] {
  const order = new Map(model.modules.map(({ name }, index) => [name, index]));
  return Object.entries(reply.captures)
    .filter(([key]) => key.includes("@grad_output"))
    .map(([key, tensor]) => {
      const { norm, count } = statisticsOf(numbersOf(tensor));
      return { name: key.replace("@grad_output", ""), size: norm / Math.sqrt(Math.max(1, count)) };
    })
    .sort(
      (one, other) => (order.get(one.name.split("#")[0] ?? "") ?? 0) - (order.get(other.name.split("#")[0] ?? "") ?? 0),
    );
}
