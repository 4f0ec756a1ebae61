/** Which rows of the job a person looks at: filters, an order, a text, and one row. */

import { computed, signal } from "@preact/signals";
import { quantile, sort } from "d3-array";
import { statisticsOf } from "../measures/index.js";
import { verdictText } from "../ui/index.js";
import { type JobFolder, type Sample, samplesOf } from "./folder.js";
import { folder, type JobRow, rows, sampledColumns, samples } from "./rows.js";

/** The limits of the quarters of all predicted numbers, and the deviation of all residuals. */
const limits = computed(() =>
  [0.25, 0.5, 0.75].map((share) => quantile(rows.value, share, ({ value }) => value) ?? NaN),
);
const spread = computed(() => statisticsOf(rows.value.map(({ residual = NaN }) => residual)).deviation);

const QUARTERS = ["lowest quarter", "second quarter", "third quarter", "highest quarter"];

/** What rows are filtered by: the value of one row, "" where it has none. */
export const FILTERS = {
  Predicted: ({ prediction, value }) => (value === undefined ? prediction : ""),
  Label: ({ label, value }) => (value === undefined ? label : ""),
  Checks: ({ problem, verdict }) => (problem ? "bad row" : verdict ? verdictText(verdict, true) : ""),
  "As labelled": ({ label, prediction, value, wrong }) =>
    label && prediction && value === undefined ? (wrong ? "no" : "yes") : "",
  "Predicted number": ({ value }) =>
    value === undefined ? "" : (QUARTERS[limits.value.filter((limit) => value > limit).length] ?? ""),
  Residual: ({ value, residual = NaN }) => {
    if (value === undefined || Number.isNaN(residual)) return "";
    return residual > spread.value ? "too low" : residual < -spread.value ? "too high" : "near the label";
  },
} as const satisfies Record<string, (row: JobRow) => string>;

/** What rows are filtered by. */
export type Filter = keyof typeof FILTERS;

/** The orders of rows; each gives a number, the smallest first. */
export const ORDERS = {
  "as in the data": (row) => row.number,
  "least probable first": (row) => row.probability ?? 2,
  "most probable first": (row) => -(row.probability ?? -1),
  "largest residual first": (row) => -Math.abs(row.residual ?? 0),
  "highest prediction first": (row) => -(row.value ?? -Infinity),
  "lowest prediction first": (row) => row.value ?? Infinity,
  "largest error first": (row) => -row.error,
} as const satisfies Record<string, (row: JobRow) => number>;

/** Which rows a person chose to see. */
export interface Query {
  readonly filters: Readonly<Partial<Record<Filter, string>>>;
  readonly order: keyof typeof ORDERS;
  /** A part of an id, a label or a prediction. */
  readonly text: string;
}

/** Every row, in the order of the data. */
export const ALL: Query = { filters: {}, order: "as in the data", text: "" };

/** Which rows a person chose to see. */
export const query = signal<Query>(ALL);

/** The row that is looked at. */
export const chosen = signal<JobRow | undefined>(undefined);

/** The orders that make sense: those in which rows differ. */
export const orders = computed(() =>
  (Object.keys(ORDERS) as Query["order"][]).filter((name) => {
    const ranks = new Set(rows.value.map(ORDERS[name]));
    return ranks.size > 1 || name === ALL.order;
  }),
);

/** The rows that have every value of the filters. */
export const filtered = computed(() => {
  const filters = Object.entries(query.value.filters) as [Filter, string][];
  return rows.value.filter((row) => filters.every(([name, value]) => !value || FILTERS[name](row) === value));
});

/** Those with the text that a person chose, in the order that was chosen. */
export const shown = computed(() => {
  const sought = query.value.text.trim().toLowerCase();
  const found = ({ id, label, prediction }: JobRow): boolean =>
    [id, label, prediction].some((name) => name.toLowerCase().includes(sought));
  return sort(filtered.value.filter(found), ORDERS[query.value.order]);
});

/** Opens a folder, or none, and begins to read what statistics are computed from. */
export function show(opened: JobFolder | undefined): void {
  folder.value = opened;
  chosen.value = samples.value = undefined;
  query.value = ALL;
  if (!opened) return;
  const take = (read: readonly Sample[] | Error): void => {
    if (folder.value === opened) samples.value = read;
  };
  samplesOf(opened, sampledColumns(opened)).then(take, (failure: unknown) => take(failure as Error));
}
