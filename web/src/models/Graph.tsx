/** The path of data: modules in the order of the tree, as boxes that unfold; the page's own layout places them. */

import { Panel } from "../app/parts.js";
import { useMemo, useState } from "preact/hooks";
import { shapeText } from "../pictures/text.js";
import { type Row, type RowsProps, turned } from "./tree.js";

/** Shows the path. */
export function Graph({ rows, chosen, onChoose }: RowsProps): preact.JSX.Element {
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set([""]));
  const path = useMemo(() => pathOf(rows, open), [rows, open]);
  const turn = (row: Row): void => {
    onChoose(row);
    if (row.size) setOpen(turned(open, row.address));
  };
  const box = ({ row, inside }: Step): preact.JSX.Element => (
    <li key={row.address} class={`${inside ? "open" : ""} ${row.address === chosen?.address ? "chosen" : ""}`}>
      <button title={row.address} {...(row.size ? { "aria-expanded": Boolean(inside) } : {})} onClick={() => turn(row)}>
        <bdi class="mono">{row.name}</bdi> {row.size ? (inside ? "−" : "+") : ""}
        {!inside && <bdi class="muted small">{row.type}</bdi>}
      </button>
      {inside && <ol>{inside.map(box)}</ol>}
      {!inside && <span class="muted small flows">{shapeText(row.shapes[0] ?? [])}</span>}
    </li>
  );
  return (
    <Panel id="graph" title="The path of data" kind="graph">
      <p class="muted">Modules that ran for the model’s own example, in the order of the tree.</p>
      <ol>{path.map(box)}</ol>
    </Panel>
  );
}

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
