/** Numbers as a picture, a pixel each, with what its colours mean; a pointer or the arrow keys tell the number at a place. */

import { useEffect, useRef, useState, useMemo } from "preact/hooks";
import { savePng } from "./saving.js";
import { short } from "./text.js";
import { pixelsOf, scaleOf, type Scale } from "./colours.js";
import "./pictures.css";

interface PictureProps {
  /** What it shows, for those who do not see it. */
  readonly label: string;
  /** The numbers, row by row. */
  readonly values: ArrayLike<number>;
  readonly width: number;
  /** The picture, four bytes a number. */
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  /** What a row or a column is called. */
  readonly nameOf?: (x: number, y: number) => string;
  /** Takes the place that a person clicks, or where the Enter key is pressed. */
  readonly onChoose?: (x: number, y: number) => void;
  /** The height of a row in CSS pixels, where its numbers need not be squares: then it is as wide as there is room. */
  readonly rowHeight?: number;
}

/** The least size of the longer side on the screen, and the most of a pixel, in CSS pixels. */
const LEAST = 256;
const MOST_SCALE = 48;
/** The most pixels along one side that every browser draws. */
const MOST_PIXELS = 32_767;

/** Shows the picture with crisp pixels. */
export function Picture({
  label,
  values,
  width,
  pixels,
  nameOf,
  onChoose,
  rowHeight,
}: PictureProps): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [place, setPlace] = useState<readonly [number, number] | undefined>(undefined);
  const height = Math.max(1, Math.ceil(values.length / width));
  const scale = Math.min(MOST_SCALE, Math.max(1, Math.ceil(LEAST / Math.max(width, height))));
  useEffect(() => {
    const drawn = canvas.current;
    if (drawn === null || pixels.length === 0 || Math.max(width, height) > MOST_PIXELS) return;
    const image = new ImageData(width, height);
    image.data.set(pixels); // the last row may be shorter
    drawn.getContext("2d")?.putImageData(image, 0, 0);
    drawn.style.setProperty("width", rowHeight ? "100%" : `${width * scale}px`);
    drawn.style.setProperty("height", rowHeight ? `${height * rowHeight}px` : "auto");
  }, [pixels, width, height, scale, rowHeight]);
  const move = (x: number, y: number): void => {
    const to = [clamped(x, width), clamped(y, height)] as const;
    if (to[1] * width + to[0] < values.length) setPlace(to);
  };
  const point = ({ offsetX, offsetY }: PointerEvent): void => {
    const drawn = canvas.current;
    if (drawn === null) return;
    const x = Math.floor((offsetX / drawn.clientWidth) * width);
    const y = Math.floor((offsetY / drawn.clientHeight) * height);
    move(x, y);
  };
  const choose = (): void => {
    if (place) onChoose?.(...place);
  };
  const step = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.ctrlKey) choose();
    const [dx, dy] = STEPS[event.key] ?? [0, 0];
    if (dx === 0 && dy === 0) return;
    event.preventDefault();
    const [x, y] = place ?? [-dx, -dy];
    move(x + dx, y + dy);
  };
  if (Math.max(width, height) > MOST_PIXELS)
    return <p class="muted">{`${height} by ${width} numbers are more than a picture can have on one side.`}</p>;
  return (
    <div class="picture savable">
      <canvas
        ref={canvas}
        width={width}
        height={height}
        role="img"
        tabIndex={0}
        aria-label={`${label}, ${height} by ${width}. The arrow keys tell its numbers${onChoose ? ", the Enter key chooses one" : ""}.`}
        onPointerMove={point}
        onClick={choose}
        onPointerLeave={() => setPlace(undefined)}
        onKeyDown={step}
      />
      <button
        class="save quiet small"
        title="Save the picture"
        onClick={() => canvas.current && savePng(label, canvas.current, scale)}
      >
        PNG
      </button>
      <output class="small muted number">
        {place ? told(place, values[place[1] * width + place[0]] ?? Number.NaN, nameOf) : "\u00a0"}
      </output>
    </div>
  );
}

const STEPS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

function clamped(place: number, size: number): number {
  return Math.min(size - 1, Math.max(0, place));
}

function told([x, y]: readonly [number, number], value: number, nameOf: PictureProps["nameOf"]): string {
  return `${nameOf?.(x, y) ?? `row ${y}, column ${x}`}: ${short(value)}`;
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
  const rowHeight = Math.min(ROW_HEIGHT, (MOST_HEIGHT * shown.width) / Math.max(1, values.length));
  return (
    <>
      <Legend scale={scale} />
      <Picture values={values} pixels={pixels} rowHeight={rowHeight} {...shown} />
    </>
  );
}

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
