/** Rows of numbers: a vector as bars, positions of a sequence as a heat map. */

import { tokensOf } from "./places.js";
import { layoutOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { Bars } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import type { ViewProps } from "../state/asked.js";

const MOST_BARS = 64;

/** Shows a part without channels. */
export function Sequence({ asked, row, part, label }: ViewProps & { part: Part; label: string }): preact.JSX.Element {
  const layout = layoutOf(part.shape);
  const tokens = tokensOf(asked, row);
  const rows = layout.kind === "rows" ? layout.rows : 1;
  const nameOf = (x: number, y: number): string =>
    rows === 1 ? `element ${x}` : `${tokens.length === rows ? (tokens[y] ?? "") : `position ${y}`}, feature ${x}`;
  return (
    <>
      <HeatMap label={label} values={part.values} width={layout.width} nameOf={nameOf} />
      {rows === 1 && (
        <Bars
          bars={Array.from(part.values.subarray(0, MOST_BARS), (value, index) => ({ name: String(index), value }))}
        />
      )}
    </>
  );
}
