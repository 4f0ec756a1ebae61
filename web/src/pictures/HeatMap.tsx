/** Rows of numbers in colours, a line of text high, with the scale. */

import { useMemo } from "preact/hooks";
import { pixelsOf, scaleOf } from "./colours.js";
import { Legend } from "./Legend.js";
import { Picture } from "./Picture.js";

interface Props {
  readonly label: string;
  readonly values: ArrayLike<number>;
  readonly width: number;
  /** Whether zero is the middle of the scale, though no number is negative. */
  readonly signed?: boolean;
  /** What a row or a column is called. */
  readonly nameOf?: (x: number, y: number) => string;
}

/** Of a row, and the greatest of all rows together, in CSS pixels. */
const ROW_HEIGHT = 20;
const MOST_HEIGHT = 960;

/** Shows the rows. */
export function HeatMap({ values, signed = false, ...shown }: Props): preact.JSX.Element {
  const scale = useMemo(() => scaleOf(values, signed), [values, signed]);
  const pixels = useMemo(() => pixelsOf(values, scale), [values, scale]);
  const rowHeight = Math.min(ROW_HEIGHT, (MOST_HEIGHT * shown.width) / Math.max(1, values.length));
  return (
    <>
      <Legend scale={scale} />
      <Picture values={values} pixels={pixels} rowHeight={rowHeight} {...shown} />
    </>
  );
}
