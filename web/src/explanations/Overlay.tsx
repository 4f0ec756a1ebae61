/** An explanation over the image that it is about. */

import { useMemo, useState } from "preact/hooks";
import type { Background } from "./backgrounds.js";
import { Slider } from "../app/controls.js";
import { flattened } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { enlarged, laidOver, pixelsOf, scaleOf } from "../pictures/colours.js";
import { Legend, Picture } from "../pictures/Picture.js";
import { signed } from "../pictures/text.js";

const OPACITY = 0.75;

interface Props {
  readonly part: Part;
  readonly under: Background | undefined;
  readonly label: string;
}

/** Shows the sum over channels; an explanation of a layer is enlarged to the size of the image. */
export function Overlay({ part, under, label }: Props): preact.JSX.Element {
  const [opacity, setOpacity] = useState(OPACITY);
  const map = useMemo(() => flattened(part), [part]);
  const [height = 1, width = 1] = map.shape;
  const scale = useMemo(() => scaleOf(map.values, true), [map]);
  const size = useMemo(
    (): readonly [number, number] => (under ? [under.height, under.width] : [height, width]),
    [under, height, width],
  );
  const values = useMemo(() => enlarged(map.values, [height, width], size), [map, height, width, size]);
  const pixels = useMemo(
    () => (under ? laidOver(values, scale, under.pixels, opacity) : pixelsOf(values, scale)),
    [values, scale, under, opacity],
  );
  return (
    <div class="overlay">
      <Picture label={label} values={values} width={size[1]} pixels={pixels} />
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
