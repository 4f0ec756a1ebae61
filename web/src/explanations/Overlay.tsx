/** An explanation over the image that it is about. */

import { useMemo, useState } from "preact/hooks";
import type { Background } from "./backgrounds.js";
import { flattened } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { enlarged, laidOver, pixelsOf, scaleOf } from "../pictures/colours.js";
import { Legend } from "../pictures/Legend.js";
import { Picture } from "../pictures/Picture.js";

const OPACITY = 0.9;

/** Shows the sum over channels; an explanation of a layer is enlarged to the size of the image. */
export function Overlay({
  part,
  under,
  label,
}: {
  part: Part;
  under: Background | undefined;
  label: string;
}): preact.JSX.Element {
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
      <div class="tools">
        {under && (
          <label class="small muted opacity">
            Opacity
            <input
              type="range"
              min={0}
              max={1}
              step={0.05}
              value={opacity}
              onInput={({ currentTarget }) => setOpacity(currentTarget.valueAsNumber)}
            />
          </label>
        )}
        <Legend scale={scale} />
      </div>
    </div>
  );
}
