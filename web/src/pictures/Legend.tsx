/** What the colours of a picture mean. */

import { useEffect, useRef } from "preact/hooks";
import { pixelsOf, type Scale } from "./colours.js";
import { short } from "./text.js";

const WIDTH = 256;

/** Shows a scale with its ends. */
export function Legend({ scale }: { scale: Scale }): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const { least, most } = scale;
    const values = Array.from({ length: WIDTH }, (_, index) => least + ((most - least) * index) / (WIDTH - 1));
    canvas.current?.getContext("2d")?.putImageData(new ImageData(pixelsOf(values, scale), WIDTH, 1), 0, 0);
  }, [scale]);
  return (
    <div class="legend small muted">
      <span>{short(scale.least)}</span>
      <canvas ref={canvas} width={WIDTH} height={1} aria-hidden="true" />
      <span>{short(scale.most)}</span>
    </div>
  );
}
