/** Many small pictures on one canvas: drawing thousands of elements would hold the page up. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Channel } from "./places.js";
import { planeOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { short } from "../pictures/text.js";
import { savePng } from "../pictures/saving.js";
import { theme } from "../state/theme.js";
import { pixelsOf, type Scale } from "../pictures/colours.js";

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

/** The space around a picture, and the height of the line below it, in CSS pixels. */
const GAP = 8;
const LINE = 16;

/** Shows the grid; a click or the arrow keys choose a channel, a pointer tells the number below it. */
export function ChannelGrid({ part, scale, tile, channels, chosen, nameOf, onChoose }: Props): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(640);
  const [told, tell] = useState("");
  const [across, down] = [tile + GAP, tile + LINE + GAP];
  const columns = Math.max(1, Math.floor((width + GAP) / across));
  const rows = Math.ceil(channels.length / columns);
  const pictures = useMemo(() => channels.map(({ index }) => pictureOf(part, index, scale)), [part, channels, scale]);
  useEffect(() => {
    const box = canvas.current?.parentElement;
    if (!box) return;
    const observer = new ResizeObserver(() => setWidth(box.clientWidth));
    observer.observe(box);
    return (): void => observer.disconnect();
  }, []);
  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!canvas.current || !context) return;
    const ratio = Math.max(1, Math.round(devicePixelRatio));
    canvas.current.width = ratio * columns * across;
    canvas.current.height = ratio * Math.max(1, rows) * down;
    canvas.current.style.setProperty("width", `${columns * across}px`);
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    const style = getComputedStyle(canvas.current);
    context.font = `11px ${style.fontFamily}`;
    channels.forEach(({ index, value }, at) => {
      const picture = pictures[at];
      if (!picture) return;
      const zoom = tile / Math.max(picture.width, picture.height);
      const [x, y] = [(at % columns) * across, Math.floor(at / columns) * down];
      context.drawImage(picture, x + 2, y + 2, picture.width * zoom, picture.height * zoom);
      context.fillStyle = style.color;
      context.textAlign = "left";
      context.fillText(String(index), x + 2, y + tile + LINE - 2, tile / 2);
      context.textAlign = "right";
      if (value !== undefined) context.fillText(short(value, 3), x + tile + 2, y + tile + LINE - 2, tile / 1.5);
      if (index !== chosen) return;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, tile + 2, tile + 2);
    });
  }, [pictures, tile, columns, rows, channels, chosen, theme.value]);
  const at = ({ offsetX, offsetY }: MouseEvent): Channel | undefined =>
    channels[Math.floor(offsetY / down) * columns + Math.floor(offsetX / across)];
  const choose = (channel: Channel | undefined): void => {
    if (channel !== undefined) onChoose(channel.index);
  };
  const point = (event: MouseEvent): void => {
    const { index = 0 } = at(event) ?? {};
    const { values, shape } = planeOf(part, index);
    const [height = 1, wide = 1] = shape;
    const zoom = tile / Math.max(height, wide);
    const [x, y] = [event.offsetX % across, event.offsetY % down].map((each) => Math.floor((each - 2) / zoom)) as [
      number,
      number,
    ];
    const inside = at(event) && x >= 0 && y >= 0 && x < wide && y < height;
    tell(inside ? `${nameOf(index)}, row ${y}, column ${x}: ${short(values[y * wide + x] ?? Number.NaN)}` : "");
  };
  return (
    <div class="grid savable">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="listbox"
        aria-label={`${channels.length} channels`}
        aria-activedescendant="chosen-channel"
        onClick={(event) => choose(at(event))}
        onPointerMove={point}
        onPointerLeave={() => tell("")}
        onKeyDown={(event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
          if (by === undefined) return;
          event.preventDefault();
          choose(channels[channels.findIndex(({ index }) => index === chosen) + by]);
        }}
      >
        <span id="chosen-channel" role="option" aria-selected>
          {nameOf(chosen)}
        </span>
      </canvas>
      <output class="small muted number">{told || "\u00a0"}</output>
      <button
        class="save quiet small"
        title="Save the grid"
        onClick={() => canvas.current && savePng("channels", canvas.current, 1)}
      >
        PNG
      </button>
    </div>
  );
}

function pictureOf(part: Part, channel: number, scale: Scale): OffscreenCanvas {
  const { values, shape } = planeOf(part, channel);
  const [height = 1, width = 1] = shape;
  const picture = new OffscreenCanvas(width, height);
  picture.getContext("2d")?.putImageData(new ImageData(pixelsOf(values, scale), width, height), 0, 0);
  return picture;
}
