/** The module tree: of ten thousand modules, only those in sight are in the page. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Button, Search, shapeText } from "../ui/index.js";
import { allIn, foldable, foldedAtFirst, type ModuleNode, type Shown, shownRows, turned } from "./tree.js";

/** The height of a row in CSS pixels, and how many are drawn above and below what is in sight. */
const ROW = 28;
const SPARE = 8;

/** The columns behind the name: a head, the class of the cells, and what is in one. */
const COLUMNS: readonly [string, string, (row: ModuleNode) => ComponentChildren][] = [
  ["Type", "type muted", ({ type }) => <bdi>{type}</bdi>],
  ["Output", "number shape", ({ shapes }) => shapes.map(shapeText).join(", ")],
  ["Parameters", "number parameters", ({ parameters }) => parameters > 0 && parameters.toLocaleString("en")],
  ["Calls", "number calls muted", ({ calls }) => calls || "none"],
];

/** All rows, and the one that is chosen. */
type NodesProps = Readonly<{ rows: readonly ModuleNode[]; chosen: ModuleNode | undefined }> &
  Readonly<{ onChoose: (row: ModuleNode) => void }>;

/** Shows rows that can be folded, searched and chosen. */
export function ModuleTree({ rows, ...others }: NodesProps): preact.JSX.Element {
  const [folded, setFolded] = useState<ReadonlySet<string>>(() => foldedAtFirst(rows));
  const [sought, setSought] = useState("");
  const shown = useMemo(() => shownRows(rows, folded, sought.trim()), [rows, folded, sought]);
  const [count, inner] = useMemo(() => [allIn(rows).length, foldable(rows)] as const, [rows]);
  useEffect(() => {
    const { address = "" } = others.chosen ?? {};
    const isOutside = (each: string): boolean => !address.startsWith(each) || !/^[.:]/.test(address.slice(each.length));
    setFolded(new Set([...folded].filter(isOutside))); // what is chosen elsewhere is seen here
  }, [others.chosen]);
  const turn = (row: ModuleNode): void => setFolded(turned(folded, row));
  const turnAll = (): void => setFolded(new Set(folded.size ? [] : inner));
  return (
    <>
      <div class="tools">
        <Search
          label="Search: conv, or a glob such as layer*.conv1"
          words={["place", "places"]}
          value={sought}
          found={sought.trim() ? shown.filter(({ match }) => match).length : count}
          onChange={setSought}
        />
        {inner.length > 0 && <Button text={folded.size ? "Unfold all" : "Fold all"} class="quiet" onClick={turnAll} />}
      </div>
      <Rows {...{ shown, folded, turn }} {...others} />
    </>
  );
}

/** What is shown of the rows; `turn` folds one, or unfolds it. */
type ShownProps = Omit<NodesProps, "rows"> &
  Readonly<{ shown: readonly Shown[]; folded: ReadonlySet<string>; turn: (row: ModuleNode) => void }>;

function Rows({ shown, folded, chosen, onChoose, turn }: ShownProps): preact.JSX.Element {
  const [top, setTop] = useState(0);
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const inSight = shown.slice(first, first + Math.ceil(Math.max(innerHeight, screen.height) / ROW) + 2 * SPARE);
  const at = shown.findIndex(({ row }) => row === chosen);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const { scrollTop = 0, clientHeight = 0 } = box.current ?? {};
    if (at >= 0) box.current?.scrollTo({ top: Math.min(ROW * at, Math.max(scrollTop, ROW * (at + 2) - clientHeight)) });
  }, [chosen, at < 0]);
  const onKeyDown = (event: preact.TargetedKeyboardEvent<HTMLElement>): void => {
    const { row: current, depth: deep = 0 } = shown[at] ?? {};
    const page = Math.floor(event.currentTarget.clientHeight / ROW) - 1;
    const above = shown.findLastIndex(({ depth }, index) => index < at && depth < deep);
    const arrows = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: above };
    const jumps = { PageDown: at + page, PageUp: at - page, Home: 0, End: shown.length };
    const to = { ...arrows, ...jumps }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const turning = current && folded.has(current.address) ? "ArrowRight" : "ArrowLeft";
    if (current?.inside.length && event.key === turning) turn(current);
    else for (const { row } of shown.slice(Math.min(Math.max(to, 0), shown.length - 1)).slice(0, 1)) onChoose(row);
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
      onScroll={({ currentTarget }) => setTop(currentTarget.scrollTop)}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" class="heads">
        <div role="row" class="place">
          <span role="columnheader">Module</span>
          {COLUMNS.map(([head, kind]) => (
            <span key={head} role="columnheader" class={kind.startsWith("number") ? "number" : ""}>
              {head}
            </span>
          ))}
        </div>
      </div>
      <div role="rowgroup" style={{ height: `${shown.length * ROW}px` }} class="all">
        {inSight.map(({ row, depth, match }, index) => (
          <div
            key={row.address}
            id={`place-${first + index}`}
            role="row"
            class={`place ${row.kind} ${match ? "" : "passed"}`}
            aria-level={depth + 1}
            aria-rowindex={first + index + 1}
            aria-selected={row === chosen}
            aria-expanded={row.inside.length ? !folded.has(row.address) : undefined}
            style={{ transform: `translateY(${(first + index) * ROW}px)` }}
            onClick={() => onChoose(row)}
          >
            <span role="gridcell" class="name" style={{ paddingInlineStart: `${depth * 14}px` }}>
              <span class="mark" aria-hidden="true" onClick={() => row.inside.length && turn(row)}>
                {row.inside.length > 0 && (folded.has(row.address) ? "▸" : "▾")}
              </span>
              <bdi title={row.address}>{row.name}</bdi>
            </span>
            {COLUMNS.map(([head, kind, cell]) => (
              <span key={head} role="gridcell" class={kind}>
                {cell(row)}
              </span>
            ))}
          </div>
        ))}
      </div>
    </div>
  );
}
