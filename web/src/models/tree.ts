/** The module tree as rows: which are shown, as it is folded and searched. */

import type { ModelDetail } from "@cutaway/client";
import type { Module } from "@cutaway/contract/model_pb";
import { matches } from "./glob.js";

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

/** What a picture of the rows takes. */
export interface RowsProps {
  readonly rows: readonly Row[];
  readonly chosen: Row | undefined;
  readonly onChoose: (row: Row) => void;
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
  const rows: (Row & { size: number })[] = [];
  const open: typeof rows = [];
  const add = (row: Omit<Row, "size" | "shapes">, outputs: Module["outputShapes"]): void => {
    open.length = Math.min(open.length, row.depth);
    for (const above of open) above.size++;
    const added = { ...row, size: 0, shapes: outputs.map(({ sizes }) => sizes.map(Number)) };
    rows.push(added);
    open.push(added);
  };
  for (const { name: address, type, calls, aliases, outputShapes, parameters } of modules) {
    const depth = address === "" ? 0 : address.split(".").length;
    const name = address.slice(address.lastIndexOf(".") + 1) || type;
    add({ address, name, kind: "module", type, depth, parameters: Number(parameters), calls, aliases }, outputShapes);
    for (const operator of inside.get(address) ?? []) {
      const own = { address: operator.address, calls: operator.calls, name: operator.address.split(":").at(-1) ?? "" };
      const none = { kind: "operator", type: "operator", parameters: 0, aliases: [] } as const;
      add({ ...own, ...none, depth: depth + 1 }, operator.outputShapes);
    }
  }
  return rows;
}

/** Returns the rows that are shown: without what is folded; or those that a text or a glob finds, with all above them. */
export function shownRows(rows: readonly Row[], folded: ReadonlySet<string>, sought: string): Shown[] {
  return sought === "" ? unfolded(rows, folded) : found(rows, sought);
}

function unfolded(rows: readonly Row[], folded: ReadonlySet<string>): Shown[] {
  let next = 0;
  return rows.flatMap((row, at) => {
    if (at < next) return [];
    next = at + 1 + (folded.has(row.address) ? row.size : 0);
    return [{ row, match: true }];
  });
}

function found(rows: readonly Row[], sought: string): Shown[] {
  const small = sought.toLowerCase();
  const fits = /[*?]/.test(sought)
    ? ({ address }: Row): boolean => matches(sought, address)
    : ({ address, type }: Row): boolean => `${address} ${type}`.toLowerCase().includes(small);
  const all = rows.map(fits);
  return rows.flatMap((row, at) => {
    const [match = false, ...below] = all.slice(at, at + 1 + row.size);
    return match || below.includes(true) ? [{ row, match }] : [];
  });
}

const LARGE = 300;

/** Returns the addresses of what can be folded: all that has rows below it, but for the model. */
export function foldable(rows: readonly Row[]): string[] {
  return rows.filter(({ size, depth }) => size > 0 && depth > 0).map(({ address }) => address);
}

/** Returns what is folded at first: of a large model, all below the first level. */
export function foldedAtFirst(rows: readonly Row[]): Set<string> {
  return new Set(rows.length > LARGE ? foldable(rows) : []);
}

/** Returns addresses with one of them more, or less if it is there. */
export function turned(addresses: ReadonlySet<string>, address: string): ReadonlySet<string> {
  const others = [...addresses].filter((each) => each !== address);
  return new Set(addresses.has(address) ? others : [...others, address]);
}
