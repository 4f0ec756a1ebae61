/** Channels as small pictures, of which a person chooses one. */

import { useId, useMemo, useRef, useState } from "preact/hooks";
import type { Channel } from "./places.js";
import { Button } from "../ui/controls.js";
import { planeOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { Canvas } from "../pictures/Canvas.js";
import { pixelsOf, type Scale } from "../pictures/colours.js";
import { savePng } from "../pictures/saving.js";
import { short } from "../ui/text.js";

interface Props {
  readonly part: Part;
  readonly scale: Scale;
  /** The size of a picture on the screen, in CSS pixels. */
  readonly tile: number;
  /** Which channels, in this order. */
  readonly channels: readonly Channel[];
  readonly chosen: number;
  readonly nameOf: (channel: number) => string;
  readonly onChoose: (channel: number) => void;
}

/** Shows the grid; a click or the arrow keys choose a channel, a pointer tells the number below it. */
export function ChannelGrid({ part, scale, tile, channels, chosen, nameOf, onChoose }: Props): preact.JSX.Element {
  const group = useId();
  const grid = useRef<HTMLDivElement>(null);
  const [told, tell] = useState("");
  const [height = 1, width = 1] = part.shape.slice(-2);
  const style = { "--tile": `${tile}px`, "--wide": `${(tile * width) / Math.max(height, width)}px` };
  return (
    <div class="savable">
      <div
        class="grid"
        ref={grid}
        role="radiogroup"
        aria-label={`${channels.length} channels`}
        style={style}
        onPointerLeave={() => tell("")}
      >
        {channels.map(({ index, value }) => (
          <label key={index}>
            <input
              class="hidden"
              type="radio"
              name={group}
              aria-label={nameOf(index)}
              checked={index === chosen}
              onChange={() => onChoose(index)}
            />
            <Tile {...{ part, index, scale }} onPoint={(text) => tell(`${nameOf(index)}, ${text}`)} />
            <span>{index}</span>
            <span class="number">{value !== undefined && short(value, 3)}</span>
          </label>
        ))}
      </div>
      <output class="small muted number">{told || "\u00a0"}</output>
      <Button
        class="save quiet small"
        title="Save the grid"
        text="PNG"
        onClick={() => grid.current && saveGrid(grid.current)}
      />
    </div>
  );
}

type TileProps = Readonly<{ part: Part; index: number; scale: Scale; onPoint: (text: string) => void }>;

/** One channel; tells where a pointer is, and the number there. */
function Tile({ part, index, scale, onPoint }: TileProps): preact.JSX.Element {
  const { values, shape } = useMemo(() => planeOf(part, index), [part, index]);
  const pixels = useMemo(() => pixelsOf(values, scale), [values, scale]);
  const [height = 1, width = 1] = shape;
  const point = (x: number, y: number): void =>
    onPoint(`row ${y}, column ${x}: ${short(values[y * width + x] ?? Number.NaN)}`);
  return <Canvas {...{ pixels, width, height }} aria-hidden="true" onPoint={point} />;
}

/** Saves the pictures and their texts where they are on the screen. */
function saveGrid(grid: HTMLElement): void {
  const { left, top, width, height } = grid.getBoundingClientRect();
  savePng("channels", [width, height], Math.max(1, Math.round(devicePixelRatio)), (context) => {
    const { color, fontFamily } = getComputedStyle(grid);
    context.fillStyle = color;
    context.font = `11px ${fontFamily}`;
    for (const shown of grid.querySelectorAll<HTMLElement>("canvas, span")) {
      const box = shown.getBoundingClientRect();
      const [x, y] = [box.left - left, box.top - top];
      if (shown instanceof HTMLCanvasElement) context.drawImage(shown, x, y, box.width, box.height);
      else context.fillText(shown.innerText, x, y + 12);
    }
  });
}
