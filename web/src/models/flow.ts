/** The flow of data: which boxes are drawn, as modules are opened, and which of them gives a tensor to which. */

import type { ModelDetail } from "@cutaway/client";
import type { DataEdge } from "@cutaway/contract/model_pb";
import { allIn, type ModuleNode, treeOf } from "./tree.js";

/** A module or an operator that is drawn, or an input or an output of the model, which has no row. */
export type Box = Readonly<{ key: string; row?: ModuleNode }>;

/** What is drawn: boxes by key, and edges from one key to another. */
export type Drawing = Readonly<{ boxes: ReadonlyMap<string, Box>; edges: readonly (readonly [string, string])[] }>;

/** The most boxes that are drawn. */
export const MOST = 300;

/** What there is to draw of a model. */
export class Flow {
  readonly #edges: readonly DataEdge[];
  readonly #rows: ReadonlyMap<string, ModuleNode>;
  readonly #around = new Map<string, string>();

  constructor({ modules, operators, dataFlow }: ModelDetail) {
    const rows = allIn(treeOf(modules, operators));
    this.#edges = dataFlow;
    this.#rows = new Map(rows.map((row) => [row.address, row]));
    for (const { address, inside } of rows) for (const each of inside) this.#around.set(each.address, address);
  }

  /** Returns the modules around a place, the innermost first. */
  around(address: string): string[] {
    const next = this.#around.get(address);
    return next === undefined ? [] : [next, ...this.around(next)];
  }

  /** Returns what is drawn while these modules are open; a place is drawn as the outermost module around it that is not. */
  drawn(open: ReadonlySet<string>): Drawing {
    const boxes = new Map<string, Box>();
    const edges = new Map<string, readonly [string, string]>();
    const boxOf = (address: string): Box => {
      const closed = this.around(address).findLast((each) => !open.has(each)) ?? address;
      return { key: closed, row: this.#rows.get(closed) as ModuleNode };
    };
    for (const { source, input, target, output } of this.#edges) {
      const ends = [input ? { key: `${input} →` } : boxOf(source), output ? { key: `→ ${output}` } : boxOf(target)];
      const [one, other] = ends.map((end) => end.key) as [string, string];
      for (const end of ends) boxes.set(end.key, end);
      if (one !== other || source === target) edges.set(JSON.stringify([one, other]), [one, other]);
    }
    return { boxes, edges: [...edges.values()] };
  }

  /** Returns which modules are open at first: level by level as many as fit, but for those with operators alone. */
  openAtFirst(): ReadonlySet<string> {
    let open: ReadonlySet<string> = new Set([""]);
    for (;;) {
      const rows = [...this.drawn(open).boxes.values()].flatMap(({ row }) => row ?? []);
      const inner = rows.filter(({ inside }) => inside.some(({ kind }) => kind === "module"));
      const more = new Set([...open, ...inner.map(({ address }) => address)]);
      if (!inner.length || this.drawn(more).boxes.size > MOST) return open;
      open = more;
    }
  }
}

/** Returns what is drawn around one box: the nearest ones, as many as are drawn at most. */
export function near({ boxes, edges }: Drawing, key: string | undefined): Drawing {
  if (boxes.size <= MOST) return { boxes, edges };
  const beside = new Map<string, string[]>([...boxes.keys()].map((each) => [each, []]));
  for (const [one, other] of edges) {
    beside.get(one)?.push(other);
    beside.get(other)?.push(one);
  }
  const found = new Set([...boxes.keys()].filter((each, at) => (key === undefined ? at === 0 : each === key)));
  for (const each of found) for (const next of beside.get(each) ?? []) if (found.size < MOST) found.add(next);
  return {
    boxes: new Map([...boxes].filter(([each]) => found.has(each))),
    edges: edges.filter((pair) => pair.every((each) => found.has(each))),
  };
}
