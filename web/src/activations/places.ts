/** What was captured, and what belongs together. */

import { HookPoint, type Question } from "@cutaway/client";
import type { Part } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { layoutOf, planeOf } from "../measures/layout.js";
import { requestAt } from "../models/places.js";
import type { Asked } from "../state/asked.js";

/** Orders of channels. */
export const ORDERS = { index: "index", mean: "mean", norm: "norm", effect: "effect on the target" } as const;

/** An order of channels. */
export type Order = keyof typeof ORDERS;

/** A channel, and the number that it is sorted by; none where it is sorted by its index. */
export interface Channel {
  readonly index: number;
  readonly value?: number;
}

/** Returns the key of the gradient at a captured output; "" if the capture is none. */
export function gradientKey(key: string): string {
  return key.includes("@output") ? key.replace("@output", "@grad_output") : "";
}

/** Returns the captures of a question with the gradient at one place added. */
export function withGradient(captures: Question["captures"], key: string): NonNullable<Question["captures"]> {
  const [value = ""] = key.split("@");
  return [...(captures ?? []), requestAt(value, HookPoint.GRAD_OUTPUT)];
}

/**
 * Returns the channels in an order, the largest first but for the index. The effect of a channel is the sum of
 * gradient × activation: what the target would lose, to first order, if the channel were zero.
 */
export function ordered(part: Part, order: Order, gradient: Part | undefined): Channel[] {
  const layout = layoutOf(part.shape);
  const planes = layout.kind === "planes" ? layout.planes : 0;
  const channels = Array.from({ length: planes }, (_, index): Channel => {
    const value = measureOf(planeOf(part, index), order, gradient && planeOf(gradient, index));
    return { index, ...(value === undefined ? {} : { value }) };
  });
  const size = ({ value = 0 }: Channel): number => Math.abs(value);
  return channels.sort((one, other) => size(other) - size(one) || one.index - other.index);
}

/** Returns the sum of gradient × activation. */
export function effectOf({ values }: Part, gradient: Part): number {
  let sum = 0;
  for (let index = 0; index < values.length; index++) sum += (values[index] ?? 0) * (gradient.values[index] ?? 0);
  return sum;
}

function measureOf(plane: Part, order: Order, gradient: Part | undefined): number | undefined {
  if (order === "index") return undefined;
  if (order === "effect") return gradient && effectOf(plane, gradient);
  const found = statisticsOf(plane.values);
  return order === "mean" ? found.mean : found.norm;
}

/** Returns the texts; none where no explanation has them. */
export function tokensOf({ reply }: Asked, row: number): readonly string[] {
  return (
    reply.attributions.map(({ message }) => message.tokens?.texts[row]?.tokens ?? []).find((each) => each.length) ?? []
  );
}
