/** The module tree: of ten thousand modules, only those in sight are in the page. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Search } from "../app/controls.js";
import { shapeText } from "../pictures/text.js";
import { foldedAtFirst, type Row, type Shown, shownRows } from "./tree.js";

const ROW = 28;
const SPARE = 8;
const HEADS = ["Module", "Type", "Output", "Parameters", "Calls"];

interface Props {
  readonly rows: readonly Row[];
  readonly chosen: Row | undefined;
  readonly onChoose: (row: Row) => void;
}

/** Shows rows that can be folded, searched and chosen. */
export function ModuleTree({ rows, chosen, onChoose }: Props): preact.JSX.Element {
  const [folded, setFolded] = useState(() => foldedAtFirst(rows));
  const [sought, setSought] = useState("");
  const shown = useMemo(() => shownRows(rows, folded, sought.trim()), [rows, folded, sought]);
  const fold = (row: Row, close: boolean): void => {
    const next = new Set(folded);
    if (close) next.add(row.address);
    else next.delete(row.address);
    setFolded(next);
  };
  const found = sought.trim() ? shown.filter(({ match }) => match).length : rows.length;
  const inner = rows.filter(({ size, depth }) => size > 0 && depth > 0).map(({ address }) => address);
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
      <Rows {...{ shown, folded, chosen, onChoose, fold }} />
    </>
  );
}

interface RowsProps extends Omit<Props, "rows"> {
  readonly shown: readonly Shown[];
  readonly folded: ReadonlySet<string>;
  readonly fold: (row: Row, close: boolean) => void;
}

function Rows({ shown, folded, chosen, onChoose, fold }: RowsProps): preact.JSX.Element {
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
    const { row } = shown[Math.min(Math.max(index, 0), shown.length - 1)] ?? {};
    if (row === undefined || !box.current) return;
    onChoose(row);
    const top = ROW * Math.min(Math.max(index, 0), shown.length - 1);
    const { scrollTop, clientHeight } = box.current;
    if (top < scrollTop) box.current.scrollTop = top;
    else if (top + 2 * ROW > scrollTop + clientHeight) box.current.scrollTop = top + 2 * ROW - clientHeight;
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const page = Math.max(1, Math.floor(view.height / ROW) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    const current = shown[at]?.row;
    if (event.key in steps) goTo(at + (steps[event.key] ?? 0));
    else if (event.key === "Home") goTo(0);
    else if (event.key === "End") goTo(shown.length - 1);
    else if (event.key === "ArrowRight" && current && folded.has(current.address)) fold(current, false);
    else if (event.key === "ArrowRight") goTo(at + 1);
    else if (event.key === "ArrowLeft" && current?.size && !folded.has(current.address)) fold(current, true);
    else if (event.key === "ArrowLeft") goTo(above(shown, at));
    else return;
    event.preventDefault();
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
          <TreeRow
            key={row.address}
            {...{ row, match }}
            at={first + index}
            isFolded={folded.has(row.address)}
            isChosen={row === chosen}
            onChoose={() => onChoose(row)}
            onFold={(close) => fold(row, close)}
          />
        ))}
      </div>
    </div>
  );
}

function above(shown: readonly Shown[], at: number): number {
  const depth = shown[at]?.row.depth ?? 0;
  return Math.max(
    0,
    shown.slice(0, Math.max(at, 0)).findLastIndex(({ row }) => row.depth < depth),
  );
}

interface TreeRowProps extends Shown {
  readonly at: number;
  readonly isFolded: boolean;
  readonly isChosen: boolean;
  readonly onChoose: () => void;
  readonly onFold: (close: boolean) => void;
}

function TreeRow({ row, match, at, isFolded, isChosen, onChoose, onFold }: TreeRowProps): preact.JSX.Element {
  const mark = row.size === 0 ? "" : isFolded ? "▸" : "▾";
  return (
    <div
      id={`place-${at}`}
      role="row"
      class={`place ${row.kind} ${match ? "" : "passed"}`}
      aria-level={row.depth + 1}
      aria-rowindex={at + 1}
      aria-selected={isChosen}
      aria-expanded={row.size === 0 ? undefined : !isFolded}
      style={{ transform: `translateY(${at * ROW}px)` }}
      onClick={onChoose}
    >
      <span role="gridcell" class="name" style={{ paddingInlineStart: `${row.depth * 14}px` }}>
        <span
          class="mark"
          aria-hidden="true"
          onClick={() => {
            if (row.size) onFold(!isFolded);
          }}
        >
          {mark}
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
