/** The rows of the job that is open: what each is, and what is wrong with it. */

import { Verdict } from "@cutaway/client";
import { computed, signal } from "@preact/signals";
import { max, rollups } from "d3-array";
import { short, worstOf } from "../ui/index.js";
import { type Column, columnsOf, type JobFolder, type Line, measuredOf, type Sample, tensorIn } from "./folder.js";

/** What was found of one attribution of a row; a verdict is unspecified, and a number none, where a cell is empty. */
export interface Outcome {
  readonly attribution: string;
  readonly verdict: Verdict;
  readonly reason: string;
  readonly error: number;
  readonly delta: number;
  readonly skipped: boolean;
}

/** A row of the table. */
export interface JobRow {
  readonly line: Line;
  readonly outcomes: readonly Outcome[];
  /** Its index in the data set. */
  readonly number: number;
  readonly id: string;
  readonly label: string;
  readonly prediction: string;
  /** Of the predicted class, from 0 to 1; undefined for a model without classes. */
  readonly probability: number | undefined;
  /** The predicted number of a model without classes, and the label minus it; undefined where there is none. */
  readonly value: number | undefined;
  readonly residual: number | undefined;
  /** Whether the label is another class. */
  readonly wrong: boolean;
  /** The worst of its explanations. */
  readonly verdict: Verdict;
  /** The largest relative error of its checks. */
  readonly error: number;
  /** Why it is bad; "" if it is not. */
  readonly problem: string;
}

/** The folder that is open; it stays open while a person looks at other views. */
export const folder = signal<JobFolder | undefined>(undefined);

/** The tensors that statistics are computed from, or why they cannot be read; undefined while they are read. */
export const samples = signal<readonly Sample[] | Error | undefined>(undefined);

/** All rows of the folder. */
export const rows = computed(() => {
  const open = folder.value;
  if (!open) return [];
  const outcomesIn = outcomesOf(open);
  return open.lines.map((line) => rowOf(open, line, outcomesIn(line)));
});

/** Returns the attributions of a job, each with one of its columns. */
export function attributionsOf(folder: JobFolder): Map<string, Column> {
  return new Map(folder.columns.flatMap((column) => (column["attribution"] ? [[column["attribution"], column]] : [])));
}

/** Returns the columns that statistics are computed from. */
export function sampledColumns(folder: JobFolder): Column[] {
  const columns = [...shownColumns(folder), ...columnsOf(folder, ["capture"])];
  return columns.filter(({ store, media_type: type }) => store !== "zarr" && !type);
}

/** Returns the columns that are shown of one row, beside those that all rows have at hand. */
export function shownColumns(folder: JobFolder): Column[] {
  return [...pictured(folder), ...columnsOf(folder, ["token_attribution", "tokens", "input"])];
}

/** Returns the columns of attributions that are shown by their values: those without attributions by token. */
export function pictured(folder: JobFolder): Column[] {
  const texts = columnsOf(folder, ["tokens"]).length ? columnsOf(folder, ["token_attribution"]) : [];
  const names = texts.map(({ attribution }) => attribution);
  return columnsOf(folder, ["attribution"]).filter(({ attribution }) => !names.includes(attribution));
}

/** Returns the names among `names`, each once, in the order of the model's classes, then of the alphabet. */
export function inOrder(names: Iterable<string>): string[] {
  const places = new Map(folder.value?.manifest.labels.map((label, place) => [label, place]));
  const placeOf = (name: string): number => places.get(name) ?? places.size;
  const byName = new Intl.Collator("en", { numeric: true }).compare;
  return [...new Set(names)].sort((one, other) => placeOf(one) - placeOf(other) || byName(one, other));
}

/** Returns how often each value occurs, the most frequent first. */
export function countsOf<T>(values: readonly T[]): [T, number][] {
  const counts = rollups(
    values,
    (alike) => alike.length,
    (value) => value,
  );
  return counts.sort(([, one], [, other]) => other - one);
}

/** Returns what finds the outcomes of a row, one for each attribution. */
function outcomesOf(folder: JobFolder): (line: Line) => Outcome[] {
  const kinds = ["verdict", "reason", "largest_error", "convergence_delta", "skipped"];
  const columns = [...attributionsOf(folder).keys()].map((attribution) => {
    return [attribution, kinds.map((kind) => columnsOf(folder, [kind], attribution)[0]?.name ?? "")] as const;
  });
  return ({ cells }) =>
    columns.map(([attribution, names]) => {
      const [verdict, reason, error, delta, skipped] = names.map((name) => cells[name]);
      const [largest, sum] = [error, delta].map((cell) => (cell == null ? NaN : Number(cell))) as [number, number];
      const found = { verdict: verdictOf(verdict), reason: text(reason), skipped: Boolean(skipped) };
      return { attribution, ...found, error: largest, delta: sum };
    });
}

function rowOf(folder: JobFolder, line: Line, outcomes: readonly Outcome[]): JobRow {
  const { cells } = line;
  const nameOf = (cell: unknown): string =>
    typeof cell === "bigint" ? folder.manifest.labels[Number(cell)] || text(cell) : text(cell);
  const [measured] = measuredOf(folder);
  const value = measured && cells["error"] == null ? tensorIn(cells, measured)?.values[0] : undefined;
  const label =
    value !== undefined && typeof cells["label"] === "number" ? short(cells["label"]) : nameOf(cells["label"]);
  const named = text(cells["prediction_name"]) || nameOf(cells["prediction"]);
  const prediction = value === undefined ? named : short(value);
  return {
    line,
    outcomes,
    number: Number(cells["row"]),
    id: text(cells["id"]),
    label,
    prediction,
    probability: typeof cells["probability"] === "number" ? cells["probability"] : undefined,
    value,
    residual: typeof cells["residual"] === "number" ? cells["residual"] : undefined,
    wrong:
      value === undefined &&
      label !== "" &&
      prediction !== "" &&
      label !== prediction &&
      cells["label"] !== cells["prediction"],
    verdict: worstOf(outcomes.map(({ verdict }) => verdict)),
    error: max(outcomes, ({ error }) => error) ?? 0,
    problem: cells["error"] == null ? "" : `${text(cells["error"])}: ${text(cells["error_message"])}`,
  };
}

/** Returns the verdict that a cell names. */
function verdictOf(cell: unknown): Verdict {
  return Verdict[text(cell) as keyof typeof Verdict] ?? Verdict.UNSPECIFIED; // eslint-disable-line @typescript-eslint/no-unnecessary-condition -- a file may name any
}

/** Returns a cell in words; "" where it is empty. */
export function text(cell: unknown): string {
  return typeof cell === "string" || typeof cell === "bigint" || typeof cell === "number" ? String(cell) : "";
}
