/** The grid of a sweep: what each patch adds to the target. */

import { fromMessage } from "@cutaway/client";
import { tokensOf } from "../activations/places.js";
import { type Numbers, partOf } from "../measures/numbers.js";
import { askedParts } from "../state/draft.js";
import { type Exchange, rowsOf } from "../state/exchange.js";

/** Modules with as many places as each other; values are row by row, a row for each module. */
export type Grid = Readonly<{ modules: readonly string[]; places: readonly string[]; values: Float64Array }>;

/** Returns the effect of each patch on the target of an example, or its estimate: the target with it, less the target. */
export function gridsOf(asked: Exchange, row: number, estimated: boolean): Grid[] {
  const { sweep, sweepEstimates, predictions } = asked.reply.message;
  const target = predictions?.targetValues[row] ?? Number.NaN;
  const effects = (estimated ? sweepEstimates : sweep).flatMap(({ name, tensor }): [string, Numbers][] =>
    tensor ? [[name, partOf(fromMessage(tensor), row, rowsOf(asked)).values]] : [],
  );
  const lengths = new Set(effects.map(([, { length }]) => length));
  return [...lengths].map((length) => {
    const rows = effects.filter(([, values]) => values.length === length);
    const values = Float64Array.from(rows.flatMap(([, each]) => Array.from(each, (value) => value - target)));
    return { modules: rows.map(([name]) => name), places: placesOf(asked, row, length), values };
  });
}

/** Returns what the places are called: the tokens of the example, if they are along their axis, or their indices. */
function placesOf(asked: Exchange, row: number, count: number): string[] {
  const { axis = 1, places = [] } = askedParts(asked.question).sweep ?? {};
  const tokens = axis === 1 ? tokensOf(asked, row) : [];
  return Array.from({ length: count }, (_, at) => {
    const place = Number(places[at] ?? at);
    const isToken = places.length > 0 || tokens.length === count;
    return (isToken ? tokens.at(place) : undefined) ?? `${place}`;
  });
}
