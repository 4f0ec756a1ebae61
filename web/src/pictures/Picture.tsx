/** Numbers as a picture, a pixel each, with what its colours mean; a pointer or the arrow keys tell the number at a place. */

import { useEffect, useRef, useState, useMemo } from "preact/hooks";
import { savePng } from "./saving.js";
import { short } from "./text.js";
import { pixelsOf, scaleOf, type Scale } from "./colours.js";
import "./pictures.css";

interface Props {
  /** What it shows, for those who do not see it. */
  readonly label: string;
  /** The numbers, row by row. */
  readonly values: ArrayLike<number>;
  readonly width: number;
  /** The picture, four bytes a number. */
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  /** What a row or a column is called. */
  readonly nameOf?: (x: number, y: number) => string;
  /** The least size of its longer side on the screen, in CSS pixels. */
  readonly least?: number;
  /** The height of a row in CSS pixels, where its numbers need not be squares: then it is as wide as there is room. */
  readonly rowHeight?: number;
}

const MOST_SCALE = 48;

/** Shows the picture with crisp pixels. */
export function Picture({ label, values, width, pixels, nameOf, least = 256, rowHeight }: Props): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [place, setPlace] = useState<readonly [number, number] | undefined>(undefined);
  const height = Math.max(1, Math.round(pixels.length / 4 / width));
  const scale = Math.min(MOST_SCALE, Math.max(1, Math.ceil(least / Math.max(width, height))));
  useEffect(() => {
    const drawn = canvas.current;
    if (drawn === null || pixels.length === 0) return;
    drawn.getContext("2d")?.putImageData(new ImageData(pixels, width, height), 0, 0);
    drawn.style.setProperty("width", rowHeight ? "100%" : `${width * scale}px`);
    drawn.style.setProperty("height", rowHeight ? `${height * rowHeight}px` : "auto");
  }, [pixels, width, height, scale, rowHeight]);
  const point = ({ offsetX, offsetY }: PointerEvent): void => {
    const drawn = canvas.current;
    if (drawn === null) return;
    const x = Math.floor((offsetX / drawn.clientWidth) * width);
    const y = Math.floor((offsetY / drawn.clientHeight) * height);
    setPlace([clamped(x, width), clamped(y, height)]);
  };
  const step = (event: KeyboardEvent): void => {
    const [dx, dy] = STEPS[event.key] ?? [0, 0];
    if (dx === 0 && dy === 0) return;
    event.preventDefault();
    const [x, y] = place ?? [-dx, -dy];
    setPlace([clamped(x + dx, width), clamped(y + dy, height)]);
  };
  return (
    <div class="picture savable">
      <canvas
        ref={canvas}
        width={width}
        height={height}
        role="img"
        tabIndex={0}
        aria-label={`${label}, ${height} by ${width}. The arrow keys tell its numbers.`}
        onPointerMove={point}
        onPointerLeave={() => setPlace(undefined)}
        onKeyDown={step}
      />
      <button
        class="save quiet small"
        title="Save the picture"
        onClick={() => canvas.current && savePng("picture", canvas.current, scale)}
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

function told([x, y]: readonly [number, number], value: number, nameOf: Props["nameOf"]): string {
  return `${nameOf?.(x, y) ?? `row ${y}, column ${x}`}: ${short(value)}`;
}

interface HeatMapProps {
  readonly label: string;
  readonly values: ArrayLike<number>;
  readonly width: number;
  /** Whether zero is the middle of the scale, though no number is negative. */
  readonly signed?: boolean;
  /** What a row or a column is called. */
  readonly nameOf?: (x: number, y: number) => string;
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
