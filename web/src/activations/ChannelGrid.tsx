/** Many small pictures on one canvas: drawing thousands of elements would hold the page up. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Channel } from "./places.js";
import { planeOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { short } from "../pictures/text.js";
import { savePng } from "../pictures/saving.js";
import { pixelsOf, type Scale } from "../pictures/colours.js";

interface Props {
  readonly part: Part;
  readonly scale: Scale;
  /** Which channels, in this order. */
  readonly channels: readonly Channel[];
  readonly chosen: number;
  readonly onChoose: (channel: number) => void;
}

/** Size of a picture on the screen, and the space around it, in CSS pixels. */
const TILE = 64;
const GAP = 4;
/** Height of the line below a picture. */
const LINE = 16;
const STEP = TILE + LINE + GAP;

/** Shows the grid; a click or the arrow keys choose a channel. */
export function ChannelGrid({ part, scale, channels, chosen, onChoose }: Props): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(8 * (TILE + GAP));
  const columns = Math.max(1, Math.floor((width + GAP) / (TILE + GAP)));
  const rows = Math.ceil(channels.length / columns);
  const tiles = useMemo(() => channels.map(({ index }) => tileOf(part, index, scale)), [part, channels, scale]);
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
    canvas.current.width = ratio * columns * (TILE + GAP);
    canvas.current.height = ratio * Math.max(1, rows) * STEP;
    canvas.current.style.setProperty("width", `${columns * (TILE + GAP)}px`);
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    const style = getComputedStyle(canvas.current);
    context.font = `11px ${style.fontFamily}`;
    tiles.forEach((tile, index) => {
      const { width: across, height: down } = tile;
      const zoom = TILE / Math.max(across, down);
      const [x, y] = [(index % columns) * (TILE + GAP), Math.floor(index / columns) * STEP];
      context.drawImage(tile, x + 2, y + 2, across * zoom, down * zoom);
      const channel = channels[index];
      context.fillStyle = style.color;
      context.textAlign = "left";
      context.fillText(String(channel?.index), x + 2, y + TILE + LINE - 2);
      context.textAlign = "right";
      if (channel?.value !== undefined) context.fillText(short(channel.value, 3), x + TILE + 2, y + TILE + LINE - 2);
      if (channel?.index !== chosen) return;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, TILE + 2, TILE + 2);
    });
  }, [tiles, columns, rows, channels, chosen]);
  const choose = (index: number): void => {
    const channel = channels[index];
    if (channel !== undefined) onChoose(channel.index);
  };
  return (
    <div class="grid savable">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="listbox"
        aria-label={`${channels.length} channels`}
        aria-activedescendant="chosen-channel"
        onClick={({ offsetX, offsetY }) =>
          choose(Math.floor(offsetY / STEP) * columns + Math.floor(offsetX / (TILE + GAP)))
        }
        onKeyDown={(event) => {
          const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
          if (by === undefined) return;
          event.preventDefault();
          choose(channels.findIndex(({ index }) => index === chosen) + by);
        }}
      >
        <span id="chosen-channel" role="option" aria-selected>
          Channel {chosen}
        </span>
      </canvas>
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

function tileOf(part: Part, channel: number, scale: Scale): OffscreenCanvas {
  const { values, shape } = planeOf(part, channel);
  const [height = 1, width = 1] = shape;
  const tile = new OffscreenCanvas(width, height);
  tile.getContext("2d")?.putImageData(new ImageData(pixelsOf(values, scale), width, height), 0, 0);
  return tile;
}
