/** A small grey image, drawn pixel by pixel. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Tensor } from "@cutaway/client";
import { Check } from "../app/controls.js";
import { ask, row } from "../state/asking.js";
import { elements, numbers, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

interface Props {
  readonly spec: InputSpec;
  readonly value: Tensor | undefined;
  readonly onChange: (value: Tensor) => void;
}

const SIDE = 288;

/** Lets a person draw, with a pointer or with the arrow keys and the space bar. */
export function Drawing({ spec, value = zeros(spec), onChange }: Props): preact.JSX.Element {
  const [, , height = 1, width = 1] = value.shape;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [live, setLive] = useState(false);
  const [erases, setErases] = useState(false);
  const [cursor, setCursor] = useState(0);
  const [ink, setInk] = useState<number | undefined>(undefined);
  const size = height * width;
  const example = Math.min(row.value, (value.shape[0] ?? 1) - 1);
  const begin = example * size;
  const latest = useRef(value);
  latest.current = value;
  const cell = Math.max(1, Math.floor(SIDE / Math.max(height, width)));

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    for (let at = 0; at < size; at++) {
      const grey = Math.round(255 * Math.min(1, Math.max(0, Number(value.data[begin + at]))));
      context.fillStyle = `rgb(${grey} ${grey} ${grey})`;
      context.fillRect((at % width) * cell, Math.floor(at / width) * cell, cell, cell);
    }
    context.strokeStyle = "rgb(127 127 127)";
    context.strokeRect((cursor % width) * cell + 0.5, Math.floor(cursor / width) * cell + 0.5, cell - 1, cell - 1);
  }, [value, cursor, begin, cell, size, width]);

  const paint = (at: number, grey: number): void => {
    const data = elements(latest.current);
    data[begin + at] = grey;
    latest.current = numbers(data, value.shape, value.dataType);
    onChange(latest.current);
  };
  const cellAt = ({ offsetX, offsetY }: PointerEvent): number => {
    const x = Math.min(width - 1, Math.max(0, Math.floor((offsetX * width) / (canvas.current?.clientWidth ?? 1))));
    const y = Math.min(height - 1, Math.max(0, Math.floor((offsetY * height) / (canvas.current?.clientHeight ?? 1))));
    return y * width + x;
  };
  const done = (): void => {
    if (ink === undefined) return;
    setInk(undefined);
    if (live) void ask();
  };
  const toggled = (at: number): number => (Number(latest.current.data[begin + at]) > 0.5 ? 0 : 1);
  const clear = (): void => {
    const data = elements(value).fill(0, begin, begin + size);
    onChange(numbers(data, value.shape, value.dataType));
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -width, ArrowDown: width };
    if (event.key in steps) setCursor((cursor + (steps[event.key] ?? 0) + size) % size);
    else if (event.key === " ") paint(cursor, toggled(cursor));
    else return;
    event.preventDefault();
    if (event.key === " " && live) void ask();
  };
  const at = `row ${Math.floor(cursor / width)}, column ${cursor % width}: ${Number(value.data[begin + cursor])}`;
  return (
    <div class="drawing">
      <canvas
        ref={canvas}
        width={width * cell}
        height={height * cell}
        tabIndex={0}
        role="application"
        aria-label={`Drawing, ${height} by ${width} pixels. Arrow keys move, the space bar draws.`}
        onPointerDown={(event) => {
          const to = erases ? 0 : 1;
          event.currentTarget.setPointerCapture(event.pointerId);
          setInk(to);
          setCursor(cellAt(event));
          paint(cellAt(event), to);
        }}
        onPointerMove={(event) => {
          if (ink !== undefined) paint(cellAt(event), ink);
        }}
        onPointerUp={done}
        onPointerCancel={done}
        onKeyDown={onKeyDown}
      />
      <div class="actions">
        <button type="button" class="quiet" onClick={clear}>
          Clear
        </button>
        <Check label="Erase" checked={erases} onCheck={setErases} />
        <Check label="Ask while I draw" checked={live} onCheck={setLive} />
      </div>
      <p class="muted small" role="status">
        {at}
      </p>
    </div>
  );
}
