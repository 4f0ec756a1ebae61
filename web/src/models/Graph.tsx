/** The path of data through the modules, as boxes that unfold: the page's own layout places them. */

import { Panel } from "../app/parts.js";
import { useMemo, useState } from "preact/hooks";
import { shapeText } from "../pictures/text.js";
import { pathOf, type Step } from "./path.js";
import type { Row } from "./tree.js";

interface Props {
  readonly rows: readonly Row[];
  readonly chosen: Row | undefined;
  readonly onChoose: (row: Row) => void;
}

/** Shows the path. */
export function Graph({ rows, chosen, onChoose }: Props): preact.JSX.Element {
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set([""]));
  const path = useMemo(() => pathOf(rows, open), [rows, open]);
  const turn = (row: Row): void => {
    onChoose(row);
    if (row.size)
      setOpen(
        new Set(open.has(row.address) ? [...open].filter((each) => each !== row.address) : [...open, row.address]),
      );
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
