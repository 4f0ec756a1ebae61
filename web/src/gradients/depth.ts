/** Where gradients vanish: how large they are, layer by layer. */

import { scaleLog } from "d3-scale";
import { HookPoint } from "@cutaway/client";
import type { ComponentProps } from "preact";
import { numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import type { Bars, Named } from "../pictures/Bars.js";
import { short } from "../ui/text.js";
import type { Exchange } from "../state/exchange.js";

/** Returns how large the captured gradients are, in the order of the modules: by root mean square, whatever their size. */
export function depthsOf({ model, reply }: Exchange): Named[] {
  const order = new Map(model.modules.map(({ name }, index) => [name, index]));
  return reply.captured
    .filter(({ point }) => point === HookPoint.GRAD_OUTPUT)
    .sort((one, other) => (order.get(one.module) ?? 0) - (order.get(other.module) ?? 0))
    .map(({ name, tensor }) => {
      const { norm, count } = statisticsOf(numbersOf(tensor));
      return { name: name.replace("@grad_output", ""), value: norm / Math.sqrt(Math.max(1, count)) };
    });
}

/** A gradient that is smaller than the largest by this factor has vanished. */
const VANISHED = 1e-3;

/** Returns where gradients vanish, in words. */
export function depthText(depths: readonly Named[]): string {
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
    : `It vanishes at none of these ${depths.length} places: ${range}, all within a factor of ${short(most.value / least.value, 2)}.`;
}

/** Returns sizes that differ by powers of ten as bars on a logarithmic scale; one of zero has none, and says so. */
export function onLogScale(depths: readonly Named[]): ComponentProps<typeof Bars> {
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
