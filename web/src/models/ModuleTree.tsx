/** The module tree: of ten thousand modules, only those in sight are in the page. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Search } from "../app/controls.js";
import { shapeText } from "../pictures/text.js";
import { foldable, foldedAtFirst, type Row, type RowsProps, type Shown, shownRows, turned } from "./tree.js";

const ROW = 28;
const SPARE = 8;
const HEADS = ["Module", "Type", "Output", "Parameters", "Calls"];

/** Shows rows that can be folded, searched and chosen. */
export function ModuleTree({ rows, chosen, onChoose }: RowsProps): preact.JSX.Element {
  const [folded, setFolded] = useState<ReadonlySet<string>>(() => foldedAtFirst(rows));
  const [sought, setSought] = useState("");
  const shown = useMemo(() => shownRows(rows, folded, sought.trim()), [rows, folded, sought]);
  const turn = ({ address }: Row): void => setFolded(turned(folded, address));
  const found = sought.trim() ? shown.filter(({ match }) => match).length : rows.length;
  const inner = foldable(rows);
  return (
    <>
      <div class="tools">
        <Search
          hint="Search: conv, or a glob such as layer*.conv1"
          words={["place", "places"]}
          {...{ value: sought, found, onSearch: setSought }}
        />
        {inner.length > 0 && (
          <button class="quiet" onClick={() => setFolded(new Set(folded.size ? [] : inner))}>
            {folded.size ? "Unfold all" : "Fold all"}
          </button>
        )}
      </div>
      <Rows {...{ shown, folded, chosen, onChoose, turn }} />
    </>
  );
}

interface ShownProps extends Omit<RowsProps, "rows"> {
  readonly shown: readonly Shown[];
  readonly folded: ReadonlySet<string>;
  /** Folds a row, or unfolds it. */
  readonly turn: (row: Row) => void;
}

function Rows({ shown, folded, chosen, onChoose, turn }: ShownProps): preact.JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const measure = (): void => {
    if (box.current) setView({ top: box.current.scrollTop, height: box.current.clientHeight });
  };
  useEffect(() => {
    const observer = new ResizeObserver(measure);
    if (box.current) observer.observe(box.current);
    return (): void => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW) - SPARE);
  const inSight = shown.slice(first, Math.ceil((view.top + view.height) / ROW) + SPARE);
  const at = shown.findIndex(({ row }) => row === chosen);
  const goTo = (index: number): void => {
    const to = Math.min(Math.max(index, 0), shown.length - 1);
    const { row } = shown[to] ?? {};
    if (row === undefined || !box.current) return;
    onChoose(row);
    const { scrollTop, clientHeight } = box.current;
    box.current.scrollTop = Math.min(ROW * to, Math.max(scrollTop, ROW * (to + 2) - clientHeight));
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const current = shown[at]?.row;
    const page = Math.max(1, Math.floor(view.height / ROW) - 1);
    const above = shown.findLastIndex(({ row }, index) => index < at && row.depth < (current?.depth ?? 0));
    const arrows = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: above };
    const jumps = { PageDown: at + page, PageUp: at - page, Home: 0, End: shown.length };
    const to = new Map(Object.entries({ ...arrows, ...jumps })).get(event.key);
    if (to === undefined) return;
    event.preventDefault();
    if (current?.size && event.key === (folded.has(current.address) ? "ArrowRight" : "ArrowLeft")) turn(current);
    else goTo(to);
  };
  return (
    <div
      class="tree"
      ref={box}
      role="treegrid"
      aria-label="Modules"
      aria-rowcount={shown.length}
      aria-activedescendant={at >= first && at < first + inSight.length ? `place-${at}` : undefined}
      tabIndex={0}
      style={{ blockSize: `min(70vh, ${(Math.max(8, shown.length) + 1) * ROW}px)` }}
      onScroll={measure}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" class="heads">
        <div role="row" class="place">
          {HEADS.map((head, index) => (
            <span key={head} role="columnheader" class={index > 1 ? "number" : ""}>
              {head}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={{ height: `${shown.length * ROW}px` }} class="all">
        {inSight.map(({ row, match }, index) => (
          <TreeRow key={row.address} {...{ row, match, folded, chosen, onChoose, turn }} at={first + index} />
        ))}
      </div>
    </div>
  );
}

interface TreeRowProps extends Shown, Omit<ShownProps, "shown"> {
  readonly at: number;
}

function TreeRow({ row, match, at, folded, chosen, onChoose, turn }: TreeRowProps): preact.JSX.Element {
  const isFolded = folded.has(row.address);
  return (
    <div
      id={`place-${at}`}
      role="row"
      class={`place ${row.kind} ${match ? "" : "passed"}`}
      aria-level={row.depth + 1}
      aria-rowindex={at + 1}
      aria-selected={row === chosen}
      aria-expanded={row.size === 0 ? undefined : !isFolded}
      style={{ transform: `translateY(${at * ROW}px)` }}
      onClick={() => onChoose(row)}
    >
      <span role="gridcell" class="name" style={{ paddingInlineStart: `${row.depth * 14}px` }}>
        <span class="mark" aria-hidden="true" onClick={() => row.size && turn(row)}>
          {row.size > 0 && (isFolded ? "▸" : "▾")}
        </span>
        <bdi title={row.address}>{row.name}</bdi>
      </span>
      <span role="gridcell" class="type muted">
        <bdi>{row.type}</bdi>
      </span>
      <span role="gridcell" class="number shape">
        {row.shapes.map(shapeText).join(", ")}
      </span>
      <span role="gridcell" class="number parameters">
        {row.parameters ? row.parameters.toLocaleString("en") : ""}
      </span>
      <span role="gridcell" class="number calls muted">
        {row.calls || "none"}
      </span>
    </div>
  );
}
