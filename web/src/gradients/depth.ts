/** Where gradients vanish: how large they are, layer by layer. */

import { scaleLog } from "d3-scale";
import type { ComponentProps } from "preact";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { leavesOf, requestAt } from "../models/places.js";
import type { Bars } from "../pictures/Bars.js";
import { short } from "../pictures/text.js";
import type { Asked } from "../state/asked.js";

/** The most layers that are asked for at once. */
const MOST = 128;

/** A layer, and how large the gradient is there. */
export interface Depth {
  readonly name: string;
  /** The root of the mean square, which does not grow with the layer's size. */
  readonly value: number;
}

/** Returns requests for the gradient at the output of the first layers. */
export function gradientsEverywhere(model: ModelDetail): CaptureRequest[] {
  return leavesOf(model)
    .slice(0, MOST)
    .map(({ name }) => requestAt(name, HookPoint.GRAD_OUTPUT));
}

/** Returns the captured gradients in the order of the model's modules. */
export function depthsOf({ model, reply }: Asked): Depth[] {
  const order = new Map(model.modules.map(({ name }, index) => [name, index]));
  return Object.entries(reply.captures)
    .filter(([key]) => key.includes("@grad_output"))
    .map(([key, tensor]) => {
      const { norm, count } = statisticsOf(numbersOf(tensor));
      return { name: key.replace("@grad_output", ""), value: norm / Math.sqrt(Math.max(1, count)) };
    })
    .sort(
      (one, other) => (order.get(one.name.split("#")[0] ?? "") ?? 0) - (order.get(other.name.split("#")[0] ?? "") ?? 0),
    );
}

/** A gradient that is smaller than the largest by this factor has vanished. */
const VANISHED = 1e-3;

/** Returns where gradients vanish, in words. */
export function depthText(depths: readonly Depth[]): string {
  const broken = depths.filter(({ value }) => !Number.isFinite(value)).map(({ name }) => name);
  if (broken.length) return `The gradient is not finite at ${broken.join(", ")}.`;
  const [least, ...rest] = [...depths].sort((one, other) => one.value - other.value);
  const most = rest.at(-1);
  if (!least || !most) return "";
  if (most.value === 0) return "The gradient is zero everywhere.";
  const range = `from ${short(least.value)} at ${least.name} to ${short(most.value)} at ${most.name}`;
  const gone = depths.filter(({ value }) => value < VANISHED * most.value).map(({ name }) => name);
  return gone.length
    ? `It vanishes, below a thousandth of the largest, at ${gone.join(", ")}: ${range}.`
    : `It vanishes nowhere: ${range}, all within a factor of ${short(most.value / least.value, 2)}.`;
}

/** Returns sizes that differ by powers of ten as bars on a logarithmic scale; one of zero has none, and says so. */
export function onLogScale(depths: readonly Depth[]): ComponentProps<typeof Bars> {
  const sizes = depths.map(({ value }) => value).filter((value) => value > 0 && Number.isFinite(value));
  const least = Math.min(...sizes, 1) / 10;
  const length = scaleLog([least, Math.max(...sizes, least * 100)], [0, 1]).clamp(true);
  return {
    bars: depths,
    ticks: length.ticks(4).filter((tick) => Number.isInteger(Math.round(1e6 * Math.log10(tick)) / 1e6)),
    lengthOf: (value) => (value > 0 ? length(value) : 0),
    textOf: (value) => (value === 0 ? "0, vanished" : short(value)),
  };
}
