/** Where gradients vanish: how large they are, layer by layer. */

import { scaleLog } from "d3-scale";
import type { ComponentProps } from "preact";
import { numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import type { Bars, Named } from "../pictures/Bars.js";
import { short } from "../pictures/text.js";
import type { Asked } from "../state/asked.js";

/** A layer, and how large the gradient is there: the root of the mean square, which does not grow with its size. */
export type Depth = Named;

/** Returns the captured gradients in the order of the model's modules. */
export function depthsOf({ model, reply }: Asked): Depth[] {
  const order = new Map(model.modules.map(({ name }, index) => [name, index]));
  const rank = ({ name }: Depth): number => order.get(name.split("#")[0] ?? "") ?? 0;
  return Object.entries(reply.captures)
    .filter(([key]) => key.includes("@grad_output"))
    .map(([key, tensor]) => {
      const { norm, count } = statisticsOf(numbersOf(tensor));
      return { name: key.replace("@grad_output", ""), value: norm / Math.sqrt(Math.max(1, count)) };
    })
    .sort((one, other) => rank(one) - rank(other));
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
