/** What a change did to the layers: how far each is from what it was. */

import type { Inspection, ModelDetail } from "@cutaway/client";
import { greatest } from "d3-array";
import { numbersOf, sizeOf, statisticsOf } from "../measures/index.js";
import { leavesOf } from "../models/places.js";
import type { Named } from "../pictures/Bars.js";
import { short } from "../ui/index.js";

/** The most numbers that are asked for, over all layers. */
const MOST_NUMBERS = 2 ** 20;

/** Returns layers, evenly chosen, as many as are not too large together. */
export function layersBelow(model: ModelDetail, rows: number): string[] {
  const leaves = leavesOf(model);
  const numbers =
    leaves.reduce((sum, { outputShapes }) => sum + sizeOf((outputShapes[0]?.sizes ?? []).map(Number)), 0) * rows;
  const step = Math.max(1, Math.ceil(numbers / MOST_NUMBERS), Math.ceil(leaves.length / 64));
  return leaves.filter((_, index) => index % step === 0).map(({ name }) => name || ".");
}

/** Returns by place how far captures are from those before: the norm of the difference by the norm before, or infinite. */
export function changesBetween(before: Inspection["captures"], after: Inspection["captures"]): Named[] {
  return Object.entries(before).flatMap(([place, tensor]) => {
    const [name, other] = [place.replace("@output", ""), after[place]];
    return other ? [{ name, value: relativeChange(numbersOf(tensor), numbersOf(other)) }] : [];
  });
}

/** Returns which layer moved most, in words. */
export function movedText(changes: readonly Named[]): string {
  const broken = changes.filter(({ value }) => Number.isNaN(value)).map(({ name }) => name);
  if (broken.length) return `Not finite with the change: ${broken.join(", ")}.`;
  const most = greatest(changes, ({ value }) => value);
  return most && most.value > 0
    ? `${most.name} moved most: by ${short(100 * most.value)} % of its norm.`
    : "No other layer moved.";
}

/** Returns the norm of the difference by that of the finite numbers before; 0 where they are the same, finite or not. */
export function relativeChange(before: ArrayLike<number>, after: ArrayLike<number>): number {
  const change = (value: number, index: number): number =>
    Object.is(value, after[index]) ? 0 : (after[index] ?? NaN) - value;
  const { norm } = statisticsOf(Float64Array.from(before, change));
  const finite = Float64Array.from(before, (value) => (Number.isFinite(value) ? value : 0));
  return norm === 0 ? 0 : norm / statisticsOf(finite).norm;
}
