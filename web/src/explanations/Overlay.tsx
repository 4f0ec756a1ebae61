/** An explanation over the image that it is about. */

import { useMemo, useState } from "preact/hooks";
import { Slider } from "../app/controls.js";
import { flattened } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { type Pixels, enlarged, enlargedPicture, laidOver, pixelsOf, scaleOf } from "../pictures/colours.js";
import { Legend, Picture } from "../pictures/Picture.js";
import { signed } from "../pictures/text.js";

const OPACITY = 0.75;

interface Props {
  readonly part: Part;
  readonly under: Pixels | undefined;
  readonly label: string;
}

/** Shows the sum over channels; the smaller of explanation and image is enlarged to the size of the other. */
export function Overlay({ part, under, label }: Props): preact.JSX.Element {
  const [opacity, setOpacity] = useState(OPACITY);
  const map = useMemo(() => flattened(part), [part]);
  const [height = 1, width = 1] = map.shape;
  const scale = useMemo(() => scaleOf(map.values, true), [map]);
  const size = useMemo(
    (): readonly [number, number] => [Math.max(height, under?.height ?? 0), Math.max(width, under?.width ?? 0)],
    [under, height, width],
  );
  const values = useMemo(() => enlarged(map.values, [height, width], size), [map, height, width, size]);
  const below = useMemo(() => under && enlargedPicture(under, size), [under, size]);
  const pixels = useMemo(
    () => (below ? laidOver(values, scale, below, opacity) : pixelsOf(values, scale)),
    [values, scale, below, opacity],
  );
  const nameOf = (x: number, y: number): string =>
    `row ${Math.floor((y * height) / size[0])}, column ${Math.floor((x * width) / size[1])}`;
  return (
    <div class="overlay">
      <Picture {...{ label, values, pixels, nameOf }} width={size[1]} />
      <p class="small muted extremes">{extremesText(map.values, width)}</p>
      <div class="tools">
        {under && (
          <Slider
            label="Opacity"
            {...{ value: opacity, least: 0, most: 1, step: 0.05, kind: "opacity small muted", onChange: setOpacity }}
          />
        )}
        <Legend scale={scale} />
      </div>
    </div>
  );
}

/** Returns where the largest numbers of both signs are, in words. */
function extremesText(values: Part["values"], width: number): string {
  const { least, most } = statisticsOf(values);
  const told = (value: number): string => {
    const index = values.indexOf(value);
    return `${signed(value)} at row ${Math.floor(index / width)}, column ${index % width}`;
  };
  if (!(most > least)) return "";
  return least < 0 ? `Largest: ${told(most)}; least: ${told(least)}.` : `Largest: ${told(most)}.`;
}
