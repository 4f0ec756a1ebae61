/** What the tensors of many rows have in common: importance of features, means by class, activations of layers. */

import { flattened, type Numbers, type Part, quantile, sizeOf, sumsBy, unpaddedLength } from "../measures/index.js";

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
  const members = classes.map((name) => explained.filter(({ predicted }) => predicted === name));
  const meanOf = (several: readonly Explained[], measure: (size: number) => number, feature: number): number =>
    several.reduce((sum, { part }) => sum + measure(Math.abs(finite(part.values[feature]))), 0) / several.length;
  return Array.from(explained[0]?.part.values ?? [], (_, feature) => {
    const mean = meanOf(explained, (size) => size, feature);
    const deviation = Math.sqrt(meanOf(explained, (size) => (size - mean) ** 2, feature));
    return { feature, mean, deviation, byClass: members.map((own) => meanOf(own, (size) => size, feature)) };
  }).sort((one, other) => other.mean - one.mean);
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
    const count = (taken.get(spot) ?? -1) + 1;
    taken.set(spot, count);
    return { at, rank: Math.ceil(count / 2) * (count % 2 ? 1 : -1), level: levels[row] ?? 0 };
  });
}

/** Returns the colour of each value by its rank; equal values have one colour, and one value alone that in the middle. */
export function levelsOf(values: readonly number[]): number[] {
  const sorted = [...values].sort((one, other) => one - other);
  const distinct = [...new Set(sorted)];
  const scale = distinct.length > LEVELS ? sorted : distinct;
  const rank = new Map(scale.map((value, index) => [value, index] as const).reverse());
  return values.map((value) =>
    distinct.length === 1
      ? Math.floor(LEVELS / 2)
      : Math.min(LEVELS - 1, Math.floor((LEVELS * (rank.get(value) ?? 0)) / (scale.length - 1))),
  );
}

/** Returns the magnitude at the edges of an axis of attributions: larger ones are rare. */
export function limitOf(values: readonly number[]): number {
  return quantile(values.filter(Number.isFinite).map(Math.abs), 0.995);
}

/** Returns the mean of pictures of one shape, each the sum over its channels; undefined where there is none. */
export function meanPicture(parts: readonly Part[]): Part | undefined {
  const pictures = parts.map((part) => flattened(part));
  const [first, ...others] = pictures;
  if (!first || others.some(({ values }) => values.length !== first.values.length)) return undefined;
  const mean = first.values.map(
    (_, at) => pictures.reduce((sum, { values }) => sum + (values[at] ?? 0), 0) / pictures.length,
  );
  return { values: mean, shape: first.shape };
}

/** A token, the mean of its attributions, and how often it occurs. */
export type TokenMean = Readonly<{ token: string; mean: number; count: number }>;

/** Returns the means of tokens that occur `least` times, the largest first; without padding. */
export function tokenMeans(texts: readonly (readonly [readonly string[], Numbers])[], least: number): TokenMean[] {
  const sums = new Map<string, { sum: number; count: number }>();
  for (const [tokens, values] of texts) {
    for (const [at, token] of tokens.slice(0, unpaddedLength(tokens, values)).entries()) {
      const { sum, count } = sums.get(token) ?? { sum: 0, count: 0 };
      sums.set(token, { sum: sum + (values[at] ?? 0), count: count + 1 });
    }
  }
  const means = [...sums].filter(([, { count }]) => count >= least);
  return means
    .map(([token, { sum, count }]) => ({ token, mean: sum / count, count }))
    .sort((one, other) => other.mean - one.mean);
}

/** The units of a layer, channels or indices of the last axis: the mean of each, and those that are 0 in every row. */
export type Units = Readonly<{ means: readonly number[]; dead: readonly number[] }>;

/** Returns the units of a layer; none where rows differ in how many there are. */
export function unitsOf(parts: readonly Part[]): Units {
  const axisOf = ({ shape }: Part): number => (shape.length > 2 ? 0 : shape.length - 1);
  const countOf = (part: Part): number => part.shape[axisOf(part)] ?? 1;
  const [first] = parts;
  const count = first ? countOf(first) : 0;
  if (parts.some((part) => countOf(part) !== count)) return { means: [], dead: [] };
  const [sums, sizes] = [finite, (value: number) => Math.abs(finite(value))].map((measure) => {
    const all = parts.map((part) => {
      const step = sizeOf(part.shape.slice(axisOf(part) + 1));
      return sumsBy(part.values.map(measure), count, (index) => Math.floor(index / step) % count);
    });
    return Array.from({ length: count }, (_, unit) => all.reduce((sum, own) => sum + (own[unit] ?? 0), 0));
  }) as [number[], number[]];
  const elements = parts.reduce((sum, { values }) => sum + values.length / count, 0);
  return { means: sums.map((sum) => sum / elements), dead: sums.flatMap((_, unit) => (sizes[unit] ? [] : [unit])) };
}

function finite(value = 0): number {
  return Number.isFinite(value) ? value : 0;
}
