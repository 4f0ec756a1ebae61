/** What the tensors of many rows have in common: importance of features, means by class, activations of layers. */

import { bisectLeft, descending, mean, quantile, rollups, sort } from "d3-array";
import { flattened, type Numbers, type Part, sizeOf, sumsBy, unpaddedLength } from "../measures/index.js";

/** The attributions of one row: its predicted class, "" without classes, and the inputs that they are of, if known. */
export type Explained = Readonly<{ part: Part; predicted: string; input?: Numbers | undefined }>;

/** A feature: mean and standard deviation of the magnitudes of its attributions, and the mean by predicted class. */
export interface Importance {
  readonly feature: number;
  readonly mean: number;
  readonly deviation: number;
  readonly byClass: readonly number[];
}

/** Returns the importance of every feature, the most important first; `classes` are those with means of their own. */
export function importancesOf(explained: readonly Explained[], classes: readonly string[]): Importance[] {
  const all = Array.from(explained[0]?.part.values ?? [], (_, feature): Importance => {
    const sizeOf = ({ part }: Explained): number => Math.abs(finite(part.values[feature]));
    const meanOf = (several: readonly Explained[]): number => mean(several, sizeOf) ?? NaN;
    const middle = meanOf(explained);
    const deviation = Math.sqrt(mean(explained, (each) => (sizeOf(each) - middle) ** 2) ?? NaN);
    const byClass = classes.map((name) => meanOf(explained.filter(({ predicted }) => predicted === name)));
    return { feature, mean: middle, deviation, byClass };
  });
  return sort(all, (one, other) => descending(one.mean, other.mean));
}

/** The number of colours of dots. */
export const LEVELS = 7;

/** A dot of a row: where it is, from -1 to 1, its place among those at the same spot, and its colour. */
export type Dot = Readonly<{ at: number; rank: number; level: number }>;

/** Spots side by side on the axis. */
const SPOTS = 70;

/** Returns a dot for each value, beside others at the same spot; values beyond `limit` are at the edges. */
export function dotsOf(values: readonly number[], levels: readonly number[], limit: number): Dot[] {
  const taken = new Map<number, number>();
  return values.map((value, row) => {
    const at = Math.max(-1, Math.min(1, finite(value) / (limit || 1)));
    const spot = Math.round(at * SPOTS);
    const count = taken.get(spot) ?? 0;
    taken.set(spot, count + 1);
    return { at, rank: Math.ceil(count / 2) * (count % 2 ? 1 : -1), level: levels[row] ?? 0 };
  });
}

/** Returns the colour of each value by its rank; equal values have one colour, and one value alone that in the middle. */
export function levelsOf(values: readonly number[]): number[] {
  const distinct = sort(new Set(values));
  const scale = distinct.length > LEVELS ? sort(values) : distinct;
  if (distinct.length === 1) return values.map(() => Math.floor(LEVELS / 2));
  return values.map((value) =>
    Math.min(LEVELS - 1, Math.floor((LEVELS * bisectLeft(scale, value)) / (scale.length - 1))),
  );
}

/** Returns the magnitude at the edges of an axis of attributions: larger ones are rare. */
export function limitOf(values: readonly number[]): number {
  return quantile(values.filter(Number.isFinite), 0.995, Math.abs) ?? NaN;
}

/** Returns the mean of pictures of one shape, each the sum over its channels; undefined where there is none. */
export function meanPicture(parts: readonly Part[]): Part | undefined {
  const [first, ...others] = parts.map(flattened);
  if (!first || others.some(({ values }) => values.length !== first.values.length)) return undefined;
  return { values: meansOf([first, ...others]), shape: first.shape };
}

/** Returns the mean of each element over parts of one shape. */
export function meansOf(parts: readonly Pick<Part, "values">[]): Float64Array {
  return Float64Array.from(parts[0]?.values ?? [], (_, at) => {
    return parts.reduce((total, { values }) => total + (values[at] ?? 0), 0) / parts.length;
  });
}

/** A token, the mean of its attributions, and how often it occurs. */
export type TokenMean = Readonly<{ token: string; mean: number; count: number }>;

/** Returns the means of tokens that occur `least` times, the largest first; without padding. */
export function tokenMeans(texts: readonly (readonly [readonly string[], Numbers])[], least: number): TokenMean[] {
  const all = texts.flatMap(([tokens, values]) =>
    tokens.slice(0, unpaddedLength(tokens, values)).map((token, at) => [token, values[at] ?? 0] as const),
  );
  const means = rollups(
    all,
    (own) => ({ mean: own.reduce((total, [, value]) => total + value, 0) / own.length, count: own.length }),
    ([token]) => token,
  );
  return means
    .flatMap(([token, found]) => (found.count >= least ? [{ token, ...found }] : []))
    .sort((one, other) => other.mean - one.mean);
}

/** The units of a layer, channels or indices of the last axis: the mean of each, and those that are 0 in every row. */
export type Units = Readonly<{ means: readonly number[]; dead: readonly number[] }>;

/** Returns the units of a layer; none where rows differ in how many there are. */
export function unitsOf(parts: readonly Part[]): Units {
  const axisOf = ({ shape }: Pick<Part, "shape">): number => (shape.length > 2 ? 0 : shape.length - 1);
  const countOf = (part: Part): number => part.shape[axisOf(part)] ?? 1;
  const count = parts[0] ? countOf(parts[0]) : 0;
  if (parts.some((part) => countOf(part) !== count)) return { means: [], dead: [] };
  const [sums, sizes] = [finite, (value: number) => Math.abs(finite(value))].map((measure) => {
    const rows = parts.map(({ values, shape }) => {
      const step = sizeOf(shape.slice(axisOf({ shape }) + 1));
      return { values: sumsBy(values.map(measure), count, (index) => Math.floor(index / step) % count) };
    });
    return Array.from(meansOf(rows));
  }) as [number[], number[]];
  const elements = mean(parts, ({ values }) => values.length / count) ?? 1;
  return { means: sums.map((each) => each / elements), dead: sums.flatMap((_, unit) => (sizes[unit] ? [] : [unit])) };
}

function finite(value = 0): number {
  return Number.isFinite(value) ? value : 0;
}
