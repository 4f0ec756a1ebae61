/** The path of data as boxes: modules in the order of the tree, those that are unfolded around what is inside them. */

import type { Row } from "./tree.js";

/** A box. */
export interface Box {
  readonly row: Row;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  /** Whether it is around others. */
  readonly open: boolean;
}

/** A line from one box down to the next, with the shape of what flows there. */
export interface Arrow {
  readonly x: number;
  readonly from: number;
  readonly to: number;
  readonly shape: string;
}

/** All that is drawn. */
export interface Layout {
  readonly boxes: readonly Box[];
  readonly arrows: readonly Arrow[];
  readonly width: number;
  readonly height: number;
}

/** The most boxes that are drawn. */
export const MOST = 300;

const WIDTH = 232;
const HEIGHT = 40;
const GAP = 32;
const PAD = 12;
const TITLE = 28;

/** Returns where everything is drawn; only modules that ran for the model's own example are. */
export function layoutOf(rows: readonly Row[], open: ReadonlySet<string>): Layout {
  const boxes: Box[] = [];
  const arrows: Arrow[] = [];
  const deepest = { depth: 0 };
  let y = PAD;
  let last: { bottom: number; shape: string } | undefined;
  const place = (at: number, depth: number): void => {
    const row = rows[at];
    if (row === undefined || boxes.length >= MOST) return;
    deepest.depth = Math.max(deepest.depth, depth);
    const inner = childrenOf(rows, at).filter((child) => runs(rows, child));
    if (inner.length > 0 && open.has(row.address)) {
      const top = y;
      const index = boxes.push({ row, x: 0, y: top, width: 0, height: 0, open: true }) - 1;
      y += TITLE;
      for (const child of inner) place(child, depth + 1);
      y += PAD - GAP;
      boxes[index] = { row, x: depth * PAD, y: top, width: 0, height: y - top, open: true };
      y += GAP;
      return;
    }
    if (last) arrows.push({ x: 0, from: last.bottom, to: y, shape: last.shape });
    boxes.push({ row, x: depth * PAD, y, width: WIDTH, height: HEIGHT, open: false });
    last = { bottom: y + HEIGHT, shape: shapeText(row.shapes[0] ?? []) };
    y += HEIGHT + GAP;
  };
  place(0, 0);
  const margin = deepest.depth * PAD;
  const width = WIDTH + 2 * margin;
  return {
    boxes: boxes.map((box) => (box.open ? { ...box, width: width - 2 * box.x } : { ...box, x: margin })),
    arrows: arrows.map((arrow) => ({ ...arrow, x: width / 2 })),
    width,
    height: y - GAP + PAD,
  };
}

/** Returns the indices of the modules right below the one at an index. */
function childrenOf(rows: readonly Row[], at: number): number[] {
  const end = at + (rows[at]?.size ?? 0);
  const children: number[] = [];
  for (let child = at + 1; child <= end; child += 1 + (rows[child]?.size ?? 0)) {
    if (rows[child]?.kind === "module") children.push(child);
  }
  return children;
}

function runs(rows: readonly Row[], at: number): boolean {
  const row = rows[at];
  return row !== undefined && (row.calls > 0 || childrenOf(rows, at).some((child) => runs(rows, child)));
}

/** Returns a shape as people read it: `1 × 16 × 8 × 8`. */
export function shapeText(shape: readonly number[]): string {
  return shape.map((size) => (size < 0 ? "any" : `${size}`)).join(" × ");
}
