/** An explanation over the image that it is about. */

import { useMemo, useState } from "preact/hooks";
import { Slider } from "../ui/controls.js";
import { axisNames, flattened } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { type Pixels, pixelsOf, type Scale, scaleOf } from "../pictures/colours.js";
import { Legend, Picture } from "../pictures/Picture.js";
import { signed } from "../ui/text.js";

const START = 0.9;
const OPACITY = { least: 0, most: 1, step: 0.05 };

type Props = Readonly<{ part: Part; under: Pixels | undefined; label: string }>;

/** Shows the sum over channels; explanation and image are as large as the larger of them. */
export function Overlay({ part, under, label }: Props): preact.JSX.Element {
  const [opacity, setOpacity] = useState(START);
  const { values, width, scale, pixels } = useMemo(() => mapOf(part), [part]);
  const over = axisNames(part.shape.length).filter((_, axis) => axis < part.shape.length - 2 && part.shape[axis] !== 1);
  return (
    <div class="overlay">
      <Picture {...{ label, values, width, pixels, under }} opacity={under ? opacity : 1} />
      <p class="small muted extremes">{`${extremesText(values, width)} ${over.length ? `Summed over each ${over.join(" and ")}.` : ""}`}</p>
      <div class="tools">
        {under && (
          <Slider label="Opacity" kind="opacity small muted" {...OPACITY} value={opacity} onChange={setOpacity} />
        )}
        <Legend scale={scale} />
      </div>
    </div>
  );
}

/** Returns what a picture of an explanation needs: its sum over channels, in colours that are symmetric around zero. */
function mapOf(part: Part): { values: Part["values"]; width: number; scale: Scale; pixels: Pixels["pixels"] } {
  const { values, shape } = flattened(part);
  const scale = scaleOf(values, true);
  return { values, width: shape[1] ?? 1, scale, pixels: pixelsOf(values, scale) };
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
