/** Rows of numbers: a vector as bars, positions of a sequence as a heat map. */

import { useState } from "preact/hooks";
import { placeAt } from "../edits/edit.js";
import { tryWithout } from "../edits/live.js";
import { Bars } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import { scaleOf } from "../pictures/colours.js";
import { Paged } from "../ui/index.js";
import { type CapturedProps, tokensOf } from "./places.js";

const PAGE = 64;
/** A longer vector is shown in rows of this length. */
const LONGEST = 256;

/** Shows a part without channels; a click or the Enter key chooses a number, which can be tried without. */
export function Sequence({ asked, row, part, captured, axes, changes }: CapturedProps): preact.JSX.Element {
  const largest = scaleOf(part.values, true).most || 1;
  const [chosen, choose] = useState<readonly number[]>([]);
  const tokens = tokensOf(asked, row);
  const vector = part.shape.length < 2;
  const [rows = 1, columns = 1] = vector ? [1, ...part.shape] : part.shape;
  const width = vector ? Math.min(columns, LONGEST) : columns;
  const textOf = (index: number, axis: number): string =>
    (axis === 0 && !vector && tokens.length === rows && tokens[index]) || `${axes[axis] ?? ""} ${index}`;
  const placeOf = (x: number, y: number): number[] => (vector ? [y * width + x] : [y, x]);
  const nameOf = (x: number, y: number): string => placeOf(x, y).map(textOf).join(", ");
  const onChoose = (x: number, y: number): void => choose(placeOf(x, y));
  const without = (axis: number): void => {
    const at = chosen.map((index, each) => (each === axis ? index : undefined));
    tryWithout(placeAt(captured), at);
  };
  const bars = Array.from(vector ? part.values : [], (value, at) => ({ name: `${at}`, value }));
  return (
    <>
      <HeatMap label={captured.name} values={part.values} {...{ width, nameOf, onChoose }} />
      {changes && (
        <div class="tools">
          {chosen.length === 0 && <span class="muted small">Click a place to try what happens without it.</span>}
          {chosen.map((index, axis) => (
            <button key={axis} onClick={() => without(axis)}>
              What happens without <bdi>{textOf(index, axis)}</bdi>?
            </button>
          ))}
        </div>
      )}
      {vector && (
        <Paged of={bars} page={PAGE}>
          {(page) => <Bars bars={page} lengthOf={(value) => Math.abs(value) / largest} />}
        </Paged>
      )}
    </>
  );
}
