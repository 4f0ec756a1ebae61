/** The path of data through the modules, as boxes that unfold. */

import { Panel } from "../app/Panel.js";
import { useMemo, useState } from "preact/hooks";
import { layoutOf, MOST } from "./graph.js";
import type { Row } from "./tree.js";

interface Props {
  readonly rows: readonly Row[];
  readonly chosen: Row | undefined;
  readonly onChoose: (row: Row) => void;
}

/** Draws the path. */
export function Graph({ rows, chosen, onChoose }: Props): preact.JSX.Element {
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set([""]));
  const { boxes, arrows, width, height } = useMemo(() => layoutOf(rows, open), [rows, open]);
  const turn = ({ address }: Row): void =>
    setOpen(new Set(open.has(address) ? [...open].filter((each) => each !== address) : [...open, address]));
  return (
    <Panel id="graph" title="The path of data" kind="graph">
      <p class="muted">Modules that ran for the model’s own example, in the order of the tree.</p>
      <svg
        viewBox={`-1 -1 ${width + 2} ${height + 2}`}
        width={width}
        height={height}
        role="group"
        aria-label="Path of data"
      >
        {arrows.map(({ x, from, to, shape }) => (
          <g key={from} class="arrow">
            <path d={`M${x} ${from}V${to - 4}m-4 -4l4 6l4 -6`} />
            <text x={x + 10} y={(from + to) / 2 + 3}>
              {shape}
            </text>
          </g>
        ))}
        {boxes.map(({ row, x, y, width: w, height: h, open: isOpen }) => (
          <g
            key={row.address}
            class={`box ${isOpen ? "open" : ""} ${row.address === chosen?.address ? "chosen" : ""}`}
            tabindex={0}
            role="button"
            {...(row.size ? { "aria-expanded": isOpen } : {})}
            onClick={() => {
              onChoose(row);
              if (row.size) turn(row);
            }}
            onKeyDown={({ key }) => {
              if (key === "Enter") {
                onChoose(row);
                if (row.size) turn(row);
              }
            }}
          >
            <title>{row.address}</title>
            <rect x={x} y={y} width={w} height={h} rx={6} />
            <text x={x + 12} y={y + (isOpen ? 18 : 17)} class="title">
              {shortened(row.name, 26)}
              {row.size ? (isOpen ? " −" : " +") : ""}
            </text>
            {!isOpen && (
              <text x={x + 12} y={y + 32} class="kind">
                {shortened(row.type, 32)}
              </text>
            )}
          </g>
        ))}
      </svg>
      {boxes.length >= MOST && <p class="muted">Only the first {MOST} boxes are drawn; fold some.</p>}
    </Panel>
  );
}

function shortened(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
