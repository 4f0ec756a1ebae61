/** Numbers as a picture, a pixel each, with what its colours mean; a pointer or the arrow keys tell the number at a place. */

import type { ComponentProps, TargetedPointerEvent } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Button, short } from "../ui/index.js";
import { type Pixels, pixelsOf, type Scale, scaleOf } from "./colours.js";
import { savePng } from "./saving.js";
import "./pictures.css";

interface PictureProps {
  /** What it shows, for those who do not see it. */
  readonly label: string;
  /** The numbers, row by row. */
  readonly values: ArrayLike<number>;
  readonly width: number;
  /** The picture, four bytes a number. */
  readonly pixels: Pixels["pixels"];
  /** An image below, which is covered by `opacity`, from 0 to 1. */
  readonly under?: Pixels | undefined;
  readonly opacity?: number;
  /** Whether pixels run into each other. */
  readonly smooth?: boolean;
  /** What a row or a column is called. */
  readonly nameOf?: ((x: number, y: number) => string) | undefined;
  /** Texts beside the rows and above the columns: with them, a picture that is too large is scrolled in its frame. */
  readonly names?: { readonly rows: readonly string[]; readonly columns: readonly string[] };
  /** Takes the place that a person clicks, or where the Enter key is pressed. */
  readonly onChoose?: (x: number, y: number) => void;
  /** Takes each number that a pressed pointer passes, or where the space bar is pressed. */
  readonly onPaint?: (index: number, byKey: boolean) => void;
  /** The height of a row in CSS pixels, where its numbers need not be squares: then it is as wide as there is room. */
  readonly rowHeight?: number;
}

/** The least size of the longer side on the screen, and the most of a pixel, in CSS pixels. */
const LEAST = 256;
const MOST_SCALE = 48;
/** The most pixels along one side that every browser draws. */
const MOST_PIXELS = 32_767;

const STEPS: Record<string, number[]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Shows the picture with crisp pixels. */
export function Picture(props: PictureProps): preact.JSX.Element {
  const { label, values, width, pixels, under, opacity = 1, smooth = false } = props;
  const { nameOf = (x, y) => `row ${y}, column ${x}`, names, onChoose, onPaint, rowHeight } = props;
  const frame = useRef<HTMLDivElement>(null);
  const mark = useRef<HTMLElement>(null);
  const [last, setLast] = useState(0);
  useLayoutEffect(() => mark.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), [last]); // while keys move it
  const height = Math.ceil(values.length / Math.max(1, width));
  const [columns, rows] = [Math.max(width, under?.width ?? 0), Math.max(height, under?.height ?? 0)];
  if (height < 1 || Math.max(width, height) > MOST_PIXELS)
    return <p class="muted">{`A picture cannot have ${height} by ${width} numbers.`}</p>;
  const scale = Math.min(MOST_SCALE, Math.max(1, Math.ceil(LEAST / Math.max(columns, rows))));
  const at = Math.min(last, values.length - 1);
  const [x, y] = [at % width, Math.floor(at / width)];
  const move = (toX: number, toY: number): number => {
    const to = clamped(toY, height) * width + clamped(toX, width);
    if (to < values.length) setLast(to);
    return to;
  };
  const point: OnPoint = (toX, toY, { type, pointerId, currentTarget }) => {
    const to = move(toX, toY);
    if (onPaint && type === "pointerdown") currentTarget.setPointerCapture(pointerId);
    if (currentTarget.hasPointerCapture(pointerId)) onPaint?.(to, false);
  };
  const press = (event: KeyboardEvent): void => {
    const [byX = 0, byY = 0] = STEPS[event.key] ?? [];
    if (byX || byY) move(x + byX, y + byY);
    else if (onPaint && event.key === " ") onPaint(at, true);
    else if (onChoose && event.key === "Enter" && !event.ctrlKey && !event.metaKey) onChoose(x, y);
    else return;
    event.preventDefault();
  };
  const saved = (): void =>
    savePng(label, [columns, rows], scale, (context) => {
      for (const canvas of frame.current?.querySelectorAll("canvas") ?? []) {
        const { filter, opacity: part } = getComputedStyle(canvas);
        [context.globalAlpha, context.filter] = [Number(part), filter];
        context.imageSmoothingEnabled = canvas.classList.contains("smooth");
        context.drawImage(canvas, 0, 0, columns, rows);
      }
    });
  const keys = `The arrow keys tell its numbers${onChoose ? ", the Enter key chooses one" : ""}${onPaint ? ", the space bar draws" : ""}.`;
  const size = rowHeight
    ? { height: `${height * rowHeight}px` }
    : { width: `${columns * scale}px`, aspectRatio: `${columns} / ${rows}` };
  const part = (count: number, of: number): string => `${(100 * count) / of}%`;
  const place = { left: part(x, width), top: part(y, height), width: part(1, width), height: part(1, height) };
  return (
    <div class="picture savable">
      <div class={names ? "named-picture small" : ""} style={{ "--columns": width }}>
        {names && <span class="corner" />}
        {names && <Names of={names.columns} kind="columns" />}
        {names && <Names of={names.rows} kind="rows" />}
        <div class="frame" ref={frame} style={size}>
          {under && <Canvas {...under} aria-hidden="true" />}
          <Canvas
            {...{ width, height, pixels }}
            class={smooth ? "smooth" : ""}
            style={{ opacity }}
            role={onPaint || onChoose ? "application" : "img"}
            tabIndex={0}
            aria-label={`${label}, ${height} by ${width}. ${keys}`}
            onPoint={point}
            onClick={() => onChoose?.(x, y)}
            onKeyDown={press}
          />
          <i ref={mark} style={place} />
        </div>
      </div>
      <Button class="save quiet small" title="Save the picture" text="PNG" onClick={saved} />
      <output class="small muted number">{`${nameOf(x, y)}: ${short(values[at] ?? NaN)}`}</output>
    </div>
  );
}

/** Texts along a side of a picture; the place that is pointed at is told with its texts below the picture. */
function Names({ of, kind }: { of: readonly string[]; kind: string }): preact.JSX.Element {
  return (
    <ol class={kind} aria-hidden="true">
      {of.map((name, index) => (
        <li key={index} title={name}>
          <bdi>{name}</bdi>
        </li>
      ))}
    </ol>
  );
}

function clamped(place: number, size: number): number {
  return Math.min(size - 1, Math.max(0, place));
}

interface HeatMapProps extends Omit<PictureProps, "pixels" | "rowHeight"> {
  /** Whether zero is the middle of the scale, though no number is negative. */
  readonly signed?: boolean;
}

/** Of a row, and the greatest of all rows together, in CSS pixels. */
const ROW_HEIGHT = 20;
const MOST_HEIGHT = 960;

/** Shows the rows. */
export function HeatMap({ values, signed = false, ...shown }: HeatMapProps): preact.JSX.Element {
  const scale = useMemo(() => scaleOf(values, signed), [values, signed]);
  const pixels = useMemo(() => pixelsOf(values, scale), [values, scale]);
  const rowHeight = shown.names
    ? ROW_HEIGHT
    : Math.min(ROW_HEIGHT, (MOST_HEIGHT * shown.width) / Math.max(1, values.length));
  return (
    <>
      <Legend scale={scale} />
      <Picture {...{ values, pixels, rowHeight }} {...shown} />
    </>
  );
}

const WIDTH = 256;

/** Shows a scale with its ends. */
export function Legend({ scale }: { scale: Scale }): preact.JSX.Element {
  const { least, most } = scale;
  const steps = Array.from({ length: WIDTH }, (_, index) => least + ((most - least) * index) / (WIDTH - 1));
  return (
    <div class="legend small muted">
      <span>{short(least)}</span>
      <Canvas pixels={pixelsOf(steps, scale)} width={WIDTH} height={1} aria-hidden="true" />
      <span>{short(most)}</span>
    </div>
  );
}

/** Takes the pixel that a pointer moves over, or is pressed at. */
export type OnPoint = (x: number, y: number, event: TargetedPointerEvent<HTMLCanvasElement>) => void;

type Props = Pixels & Omit<ComponentProps<"canvas">, "ref" | keyof Pixels> & { readonly onPoint?: OnPoint };

/** Draws the pixels; its size on the screen is that of its style. */
export function Canvas({ pixels, width, height, onPoint, ...others }: Props): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const image = new ImageData(width, height);
    image.data.set(pixels); // the last row may be shorter
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [pixels, width, height]);
  const point = (event: TargetedPointerEvent<HTMLCanvasElement>): void => {
    const { clientWidth, clientHeight } = event.currentTarget;
    const [x, y] = [(event.offsetX / clientWidth) * width, (event.offsetY / clientHeight) * height];
    onPoint?.(Math.floor(x), Math.floor(y), event);
  };
  return <canvas ref={canvas} {...{ width, height }} onPointerMove={point} onPointerDown={point} {...others} />;
}
