/** Channels as a grid of small pictures, and one of them large. */

import { type Captured, HookPoint } from "@cutaway/client";
import { useId, useMemo, useRef, useState } from "preact/hooks";
import { placeAt } from "../edits/edit.js";
import { tryWithout } from "../edits/live.js";
import { layoutOf, type Part, partsOf, placeOf, planeOf, statisticsOf } from "../measures/index.js";
import { capturing, requestAt } from "../models/places.js";
import { Canvas, Legend, Picture } from "../pictures/Picture.js";
import { pixelsOf, type Scale, scaleOf } from "../pictures/colours.js";
import { savePng } from "../pictures/saving.js";
import { ask, draft, exampleOf, type Exchange, gradientOf, targetText } from "../state/index.js";
import { Button, Choice, Paged, short, Slider, Statistics } from "../ui/index.js";
import { axesAt, canChange, type CapturedProps, gradientAt, tokensOf } from "./places.js";

const PAGE = 128;
/** Of a row of attention with its token, in CSS pixels. */
const TOKEN_HEIGHT = 20;

/** Shows the channels of one capture. */
export function Channels({ asked, row, captured, part, axes, changes }: CapturedProps): preact.JSX.Element {
  const gradient = useMemo(() => effectGradient(asked, captured, row), [asked, captured, row]);
  const [wish = "effect", setOrder] = useState<Order>();
  const order = wish === "effect" && !gradient ? "index" : wish; // until it is there
  const [chosen, setChosen] = useState<number | undefined>(undefined);
  const [tile, setTile] = useState(64);
  const channels = useMemo(() => ordered(part, order, gradient), [part, order, gradient]);
  const scale = useMemo(() => scaleOf(part.values), [part]);
  const large = chosen ?? channels[0]?.index ?? 0;
  const plane = planeOf(part, large);
  const tokens = tokensOf(asked, row);
  const [height, width = 1] = plane.shape;
  const square = height === width && tokens.length === height;
  const sort = (by: Order): void => {
    setOrder(by);
    setChosen(undefined);
    const needed = requestAt(captured.module, HookPoint.GRAD_OUTPUT);
    if (by === "effect" && !gradient) void ask(capturing(draft.value, needed));
  };
  const nameOf = (index: number): string => partText(axes, part, index);
  const without = (): void => tryWithout(placeAt(captured), placeOf(part, large));
  const { effect: _, ...orders } = ORDERS;
  return (
    <>
      <div class="tools">
        <span class="muted">Sorted by</span>
        <Choice label="Sorted by" of={changes ? ORDERS : orders} value={order} onChange={sort} />
        <span class="grow" />
        <Slider label="Zoom" kind="small muted" value={tile} least={24} most={192} step={8} onChange={setTile} />
        <Legend scale={scale} />
      </div>
      {order === "effect" && (
        <p class="muted small">
          Gradient × activation, summed over a channel: what the target, {targetText(asked, row)}, would lose, to first
          order, if the channel were zero.
        </p>
      )}
      <div class="channels">
        <div>
          <Paged key={order} of={channels} page={PAGE}>
            {(shown) => (
              <ChannelGrid {...{ part, scale, tile, nameOf }} channels={shown} chosen={large} onChoose={setChosen} />
            )}
          </Paged>
        </div>
        <figure class="large">
          <figcaption>
            {nameOf(large)}
            {gradient && <span class="muted"> effect {short(effectOf(plane, planeOf(gradient, large)))}</span>}
          </figcaption>
          <Picture
            label={`${nameOf(large)} of ${captured.name}`}
            values={plane.values}
            width={width}
            pixels={pixelsOf(plane.values, scale)}
            {...(square ? { names: { rows: tokens, columns: tokens }, rowHeight: TOKEN_HEIGHT } : {})}
            nameOf={square ? (x, y) => `${tokens[y] ?? ""} looks at ${tokens[x] ?? ""}` : undefined}
          />
          <Statistics values={plane.values} />
          {changes && <Button text="What happens without it?" onClick={without} />}
        </figure>
      </div>
    </>
  );
}

/** `tile` is the size of a picture on the screen, in CSS pixels. */
type GridProps = Readonly<{ part: Part; scale: Scale; tile: number; channels: readonly Channel[]; chosen: number }> &
  Readonly<{ nameOf: (channel: number) => string; onChoose: (channel: number) => void }>;

/** Shows the grid; a click or the arrow keys choose a channel, a pointer tells the number below it. */
export function ChannelGrid({ part, scale, tile, channels, chosen, nameOf, onChoose }: GridProps): preact.JSX.Element {
  const group = useId();
  const grid = useRef<HTMLDivElement>(null);
  const [told, tell] = useState("");
  const [height = 1, width = 1] = part.shape.slice(-2);
  const all = `${channels.length} channels`;
  const save = (): void => {
    if (grid.current) saveGrid(grid.current);
  };
  const style = { "--tile": `${tile}px`, "--wide": `${(tile * width) / Math.max(height, width)}px` };
  return (
    <div class="savable">
      <div
        {...{ class: "grid", ref: grid, role: "radiogroup", style }}
        aria-label={all}
        onPointerLeave={() => tell("")}
      >
        {channels.map(({ index, value }) => (
          <label key={index}>
            <input
              {...{ class: "hidden", type: "radio", name: group, checked: index === chosen }}
              aria-label={nameOf(index)}
              onChange={() => onChoose(index)}
            />
            <Tile {...{ part, index, scale }} onPoint={(text) => tell(`${nameOf(index)}, ${text}`)} />
            <span>{index}</span>
            <span class="number">{value !== undefined && short(value, 3)}</span>
          </label>
        ))}
      </div>
      <output class="small muted number">{told || "\u00a0"}</output>
      <Button class="save quiet small" title="Save the grid" text="PNG" onClick={save} />
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
    onPoint(`row ${y}, column ${x}: ${short(values[y * width + x] ?? NaN)}`);
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

/** Orders of channels. */
const ORDERS = { index: "index", mean: "mean", norm: "norm", effect: "effect on the target" } as const;

/** An order of channels. */
type Order = keyof typeof ORDERS;

/** A channel, and the number that it is sorted by; none where it is sorted by its index. */
interface Channel {
  readonly index: number;
  readonly value?: number | undefined;
}

/** Returns the gradient at an output for one example, where a part of it can be changed; undefined otherwise. */
function effectGradient(asked: Exchange, captured: Captured, row: number): Part | undefined {
  const gradient = canChange(asked, captured) ? gradientAt(asked, captured) : undefined;
  return gradient && gradientOf(asked, gradient.tensor, row);
}

/** Returns what a part is called: `channel 5`. */
function partText(axes: readonly string[], part: Pick<Part, "shape">, index: number): string {
  return placeOf(part, index)
    .map((at, axis) => `${axes[axis] ?? ""} ${at}`)
    .join(", ");
}

/** Returns the part of a captured output with the largest effect on the target, in words; "" if that is not known. */
export function strongestText(asked: Exchange, captured: Captured, row: number): string {
  const gradient = effectGradient(asked, captured, row);
  if (!gradient) return "";
  const part = exampleOf(asked, captured.tensor, row);
  const [first] = ordered(part, "effect", gradient);
  return first ? `${partText(axesAt(asked, captured, part), part, first.index)}: ${short(first.value ?? NaN)}` : "";
}

/**
 * Returns the channels in an order, the largest first but for the index. The effect of a channel is the sum of
 * gradient × activation: what the target would lose, to first order, if the channel were zero.
 */
function ordered(part: Part, order: Order, gradient: Part | undefined): Channel[] {
  const channels = Array.from({ length: partsOf(layoutOf(part.shape)) }, (_, index): Channel => {
    return { index, value: measureOf(planeOf(part, index), order, gradient && planeOf(gradient, index)) };
  });
  const size = ({ value = 0 }: Channel): number => (Number.isNaN(value) ? Infinity : Math.abs(value));
  return channels.sort((one, other) => size(other) - size(one) || one.index - other.index);
}

/** Returns the sum of gradient × activation. */
function effectOf({ values }: Part, gradient: Part): number {
  let sum = 0;
  for (let index = 0; index < values.length; index++) {
    const slope = gradient.values[index] ?? 0;
    if (slope !== 0) sum += slope * (values[index] ?? 0); // a mask of infinities has no effect
  }
  return sum;
}

function measureOf(plane: Part, order: Order, gradient: Part | undefined): number | undefined {
  if (order === "index") return undefined;
  if (order === "effect") return gradient && effectOf(plane, gradient);
  const found = statisticsOf(plane.values);
  return order === "mean" ? found.mean : found.norm;
}
