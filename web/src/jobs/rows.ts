/** Rows as a person looks for them: what is wrong with each, and which ones to show. */

import { computed, signal } from "@preact/signals";
import { Verdict } from "@cutaway/client";
import { worstOf } from "../ui/verdicts.js";
import { columnsOf, type JobFolder, type Line } from "./folder.js";

/** What a person may ask to see; each is a question about one row. */
export const KINDS = {
  "all rows": () => true,
  "other class than the label": (row) => row.wrong,
  "explanations that disagree": (row) => row.verdict === Verdict.DISAGREES,
  "inconclusive checks": (row) => row.verdict === Verdict.INCONCLUSIVE,
  "bad rows": (row) => row.problem !== "",
} as const satisfies Record<string, (row: Row) => boolean>;

/** The orders of rows; each gives a number, the smallest first. */
export const ORDERS = {
  "as in the data": (row) => row.number,
  "least probable first": (row) => row.probability ?? 2,
  "most probable first": (row) => -(row.probability ?? -1),
  "largest error first": (row) => -row.error,
} as const satisfies Record<string, (row: Row) => number>;

/** A row of the table. */
export interface Row {
  readonly line: Line;
  /** Its index in the data set. */
  readonly number: number;
  readonly id: string;
  readonly label: string;
  readonly prediction: string;
  /** Of the predicted class, from 0 to 1; undefined for a model without classes. */
  readonly probability: number | undefined;
  /** Whether the label is another class. */
  readonly wrong: boolean;
  /** The worst of its explanations. */
  readonly verdict: Verdict;
  /** The largest relative error of its checks. */
  readonly error: number;
  /** Why it is bad; "" if it is not. */
  readonly problem: string;
}

/** What a person chose to see. */
export interface Wanted {
  readonly kind: keyof typeof KINDS;
  readonly order: keyof typeof ORDERS;
  /** A part of an id, a label or a prediction. */
  readonly text: string;
}

/** The folder that is open; it stays open while a person looks at other views. */
export const folder = signal<JobFolder | undefined>(undefined);

/** The row that is looked at. */
export const chosen = signal<Row | undefined>(undefined);

/** Every row, in the order of the data. */
export const ALL: Wanted = { kind: "all rows", order: "as in the data", text: "" };

/** What a person chose to see. */
export const wanted = signal<Wanted>(ALL);

/** All rows of the folder. */
export const rows = computed(() => {
  const open = folder.value;
  return open ? open.lines.map((line) => rowOf(open, line)) : [];
});

/** The rows of the kind and with the text that a person chose, in the order that was chosen. */
export const shown = computed(() => {
  const sought = wanted.value.text.trim().toLowerCase();
  const [isKind, rank] = [KINDS[wanted.value.kind], ORDERS[wanted.value.order]];
  return rows.value
    .filter(isKind)
    .filter(({ id, label, prediction }) => [id, label, prediction].some((each) => each.toLowerCase().includes(sought)))
    .sort((one, other) => rank(one) - rank(other));
});

function rowOf(folder: JobFolder, line: Line): Row {
  const { cells } = line;
  const errors = columnsOf(folder, ["largest_error"]).map(({ name }) => Number(cells[name] ?? 0));
  const [label, index] = [cells["label"], cells["prediction"]];
  const own = text(cells["prediction_name"]) || text(index);
  return {
    line,
    number: Number(cells["row"]),
    id: text(cells["id"]),
    label: typeof label === "bigint" ? (folder.manifest.labels[Number(label)] ?? text(label)) : text(label),
    prediction: own,
    probability: typeof cells["probability"] === "number" ? cells["probability"] : undefined,
    wrong: label != null && index != null && label !== index && label !== own,
    verdict: worstOf(columnsOf(folder, ["verdict"]).map(({ name }) => verdictOf(cells[name]))),
    error: Math.max(0, ...errors.filter((each) => !Number.isNaN(each))),
    problem: cells["error"] == null ? "" : `${text(cells["error"])}: ${text(cells["error_message"])}`,
  };
}

/** Returns the verdict that a cell names. */
export function verdictOf(cell: unknown): Verdict {
  return Verdict[text(cell) as keyof typeof Verdict] ?? Verdict.UNSPECIFIED; // eslint-disable-line @typescript-eslint/no-unnecessary-condition -- a file may name any
}

/** Returns a cell in words; "" where it is empty. */
export function text(cell: unknown): string {
  return typeof cell === "string" || typeof cell === "bigint" || typeof cell === "number" ? String(cell) : "";
}
