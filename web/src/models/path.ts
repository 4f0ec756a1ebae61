/** The path of data: modules in the order of the tree, those that are unfolded around what is inside them. */

import type { Row } from "./tree.js";

/** A module on the path. */
export interface Step {
  readonly row: Row;
  /** The modules inside it, where it is unfolded. */
  readonly inside?: readonly Step[];
}

/** The most modules that are shown inside one. */
const MOST = 300;

/** Returns the path; only modules that ran for the model's own example are on it. */
export function pathOf(rows: readonly Row[], open: ReadonlySet<string>, begin = 0, end = 1): Step[] {
  const steps: Step[] = [];
  for (let at = begin; at < end && steps.length < MOST; at += 1 + (rows[at]?.size ?? 0)) {
    const row = rows[at];
    if (row?.kind !== "module" || !runs(rows, at)) continue;
    const inside = open.has(row.address) ? pathOf(rows, open, at + 1, at + 1 + row.size) : [];
    steps.push(inside.length ? { row, inside } : { row });
  }
  return steps;
}

/** Whether the module at an index ran, or one inside it. */
function runs(rows: readonly Row[], at: number): boolean {
  return rows.slice(at, at + 1 + (rows[at]?.size ?? 0)).some(({ kind, calls }) => kind === "module" && calls > 0);
}
