/** Where boxes and edges of the flow of data are drawn. It is loaded when a graph is, as dagre is a tenth of the page. */

import { Graph, layout } from "@dagrejs/dagre";
import type { Drawing } from "./flow.js";

/** The size of a box in CSS pixels. */
export const WIDTH = 192;
export const HEIGHT = 44;

type Point = Readonly<{ x: number; y: number }>;

/** A drawing with places: the middle of each box by its key, and a path for each edge. */
export type Layout = Readonly<{
  width: number;
  height: number;
  places: ReadonlyMap<string, Point>;
  paths: readonly (readonly [string, string, string])[];
}>;

/** Returns where all is drawn, from the top to the bottom. */
export function layoutOf({ boxes, edges }: Drawing): Layout {
  const graph = new Graph();
  graph.setGraph({ nodesep: 16, ranksep: 28, edgesep: 8, marginx: 12, marginy: 12 });
  for (const key of boxes.keys()) graph.setNode(key, { width: WIDTH, height: HEIGHT });
  for (const [one, other] of edges) graph.setEdge(one, other, {});
  layout(graph);
  const { width = 0, height = 0 } = graph.graph() as Partial<Layout>;
  return {
    width,
    height,
    places: new Map([...boxes.keys()].map((key) => [key, graph.node(key) as Point])),
    paths: edges.map(([one, other]) => [one, other, pathOf((graph.edge(one, other) as { points: Point[] }).points)]),
  };
}

/** Returns a smooth path through points: straight to the middle of each piece, and round at each point. */
function pathOf([first, ...points]: readonly Point[]): string {
  const last = points.at(-1);
  const round = points.slice(0, -1).map(({ x, y }, at) => {
    const next = points[at + 1] ?? { x, y };
    return `Q${x} ${y} ${(x + next.x) / 2} ${(y + next.y) / 2}`;
  });
  return `M${first?.x} ${first?.y} ${round.join(" ")} L${last?.x} ${last?.y}`;
}
