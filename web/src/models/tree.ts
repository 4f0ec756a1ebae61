/** The module tree as rows: which are shown, as it is folded and searched. */

import type { ModelDetail } from "@cutaway/client";
import { isGlob, matches } from "./glob.js";

/** A module, or an operator inside one. */
export interface Row {
  /** The name by which a question names it: `layer1.0.conv1`, or an operator's address; "" for the model. */
  readonly address: string;
  /** Its last part. */
  readonly name: string;
  readonly kind: "module" | "operator";
  readonly type: string;
  readonly depth: number;
  /** How many rows are below it. */
  readonly size: number;
  readonly shapes: readonly (readonly number[])[];
  readonly parameters: number;
  readonly calls: number;
  readonly aliases: readonly string[];
}

/** A row that is shown. */
export interface Shown {
  readonly row: Row;
  /** Whether it is what was searched for; else it is above such a row. */
  readonly match: boolean;
}

/** Returns all rows of a model, each module above what is inside it. */
export function rowsOf({ modules, operators }: Pick<ModelDetail, "modules" | "operators">): Row[] {
  const inside = new Map<string, typeof operators>();
  for (const each of operators) {
    const module = each.address.slice(0, each.address.lastIndexOf(":"));
    inside.set(module, [...(inside.get(module) ?? []), each]);
  }
  const rows: { -readonly [key in keyof Row]: Row[key] }[] = [];
  const open: (typeof rows)[number][] = [];
  const add = (row: Row): void => {
    while (open.length > row.depth) open.pop();
    for (const above of open) above.size++;
    const added = { ...row };
    rows.push(added);
    open.push(added);
  };
  for (const module of modules) {
    const { name, type, calls, aliases, outputShapes, parameters } = module;
    const depth = name === "" ? 0 : name.split(".").length;
    const shapes = outputShapes.map(({ sizes }) => sizes.map(Number));
    const last = name === "" ? (modules[0]?.type ?? "") : name.slice(name.lastIndexOf(".") + 1);
    const row = { address: name, name: last, type, calls, aliases, shapes, parameters: Number(parameters) };
    add({ ...row, kind: "module", depth, size: 0 });
    for (const { address, outputShapes: sizes, calls: times } of inside.get(name) ?? []) {
      const operator = { address, name: address.slice(address.lastIndexOf(":") + 1), type: "operator", calls: times };
      const outputs = sizes.map((each) => each.sizes.map(Number));
      add({ ...operator, kind: "operator", depth: depth + 1, size: 0, shapes: outputs, parameters: 0, aliases: [] });
    }
  }
  return rows;
}

/** Returns the rows that are shown: without what is folded; or those that a text or a glob finds, with all above them. */
export function shownRows(rows: readonly Row[], folded: ReadonlySet<string>, sought: string): Shown[] {
  return sought === "" ? unfolded(rows, folded) : found(rows, sought);
}

function unfolded(rows: readonly Row[], folded: ReadonlySet<string>): Shown[] {
  const shown: Shown[] = [];
  for (let at = 0; at < rows.length; at++) {
    const row = rows[at];
    if (row === undefined) break;
    shown.push({ row, match: true });
    if (folded.has(row.address)) at += row.size;
  }
  return shown;
}

function found(rows: readonly Row[], sought: string): Shown[] {
  const small = sought.toLowerCase();
  const fits = isGlob(sought)
    ? ({ address }: Row): boolean => matches(sought, address)
    : ({ address, type }: Row): boolean => `${address} ${type}`.toLowerCase().includes(small);
  const shown = new Map<Row, boolean>();
  const above: Row[] = [];
  for (const row of rows) {
    above.length = Math.min(above.length, row.depth);
    if (fits(row)) {
      for (const each of above) if (!shown.has(each)) shown.set(each, false);
      shown.set(row, true);
    }
    above.push(row);
  }
  return [...shown].map(([row, match]) => ({ row, match }));
}

const LARGE = 300;

/** Returns what is folded at first: of a large model, all below the first level. */
export function foldedAtFirst(rows: readonly Row[]): Set<string> {
  const folded = rows.filter(({ size, depth }) => size > 0 && depth >= 1);
  return new Set(rows.length > LARGE ? folded.map(({ address }) => address) : []);
}
