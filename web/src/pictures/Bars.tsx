/** Named numbers as bars, to the left or the right of zero. */

import { greatest } from "d3-array";
import { useRef } from "preact/hooks";
import { Button, short } from "../ui/index.js";
import { saveSvg } from "./saving.js";
import "./pictures.css";

/** A bar. */
export interface Named {
  readonly name: string;
  readonly value: number;
  /** Where it begins on the scale, if not at zero. */
  readonly begin?: number;
  /** More about it, below its name. */
  readonly about?: string;
}

interface Props {
  readonly bars: readonly Named[];
  /** How long the bar of a number is, from 0 to 1; by default in proportion to the largest magnitude. */
  readonly lengthOf?: (value: number) => number;
  /** The number as people read it. */
  readonly textOf?: (value: number) => string;
  /** Whether names are paths, whose ends tell them apart. */
  readonly paths?: boolean;
  /** Numbers that are marked on the scale below the bars. */
  readonly ticks?: readonly number[];
  /** Takes a bar that a person clicks; `what` says what that does. */
  readonly onChoose?: { readonly what: (name: string) => string; readonly choose: (at: number) => void };
}

/** Where the bar of a number begins and how long it is, from 0 to 100. */
type SpanOf = (value: number, begin?: number) => { x: number; width: number };

/** Returns the spans of numbers on the scale of all of `values`: from its middle, if one of them is below zero. */
export function spansOf(values: readonly number[], lengthOf = inProportionTo(values)): SpanOf {
  const zero = values.some((value) => value < 0) ? 50 : 0;
  const length = (value: number): number => (Number.isFinite(value) ? (100 - zero) * lengthOf(value) : 0);
  return (value, begin = 0) => {
    const width = length(value);
    return { x: value < 0 ? zero - width : zero || (begin && length(begin)), width };
  };
}

function inProportionTo(values: readonly number[]): (value: number) => number {
  const most = Math.max(...values.map(Math.abs).filter(Number.isFinite), 1e-30);
  return (value) => Math.abs(value) / most;
}

/** Shows the bars. */
export function Bars({ bars, lengthOf, textOf = short, ...others }: Props): preact.JSX.Element {
  const { paths = false, ticks = [], onChoose } = others;
  const values = bars.map(({ value }) => value);
  const spanOf = spansOf(values, lengthOf);
  const drawn = bars.map((bar) => ({ ...bar, text: textOf(bar.value), span: spanOf(bar.value, bar.begin) }));
  const table = useRef<HTMLTableElement>(null);
  const saved = (): void => {
    if (table.current) saveSvg("bars", table.current);
  };
  return (
    <div class="savable bars">
      <table class="named-bars" ref={table}>
        <tbody>
          {drawn.map(({ name, value, about, text, span }, index) => (
            <tr key={index} class={value < 0 ? "negative" : ""}>
              <th scope="row" title={name} class={paths ? "path" : ""}>
                {onChoose ? (
                  <button class="quiet link" title={onChoose.what(name)} onClick={() => onChoose.choose(index)}>
                    <bdi>{name}</bdi>
                  </button>
                ) : (
                  <bdi>{name}</bdi>
                )}
                {about && <span class="muted small">{about}</span>}
              </th>
              <td class="bar">
                <Strip of={[span]} />
              </td>
              <td class="number" data-value={value}>
                {text}
              </td>
            </tr>
          ))}
        </tbody>
        {ticks.length > 0 && (
          <tfoot aria-hidden="true">
            <tr>
              <td />
              <td class="ticks">
                {ticks.map((tick) => (
                  <span key={tick} style={{ insetInlineStart: `${spanOf(tick).width}%` }}>
                    {short(tick)}
                  </span>
                ))}
              </td>
            </tr>
          </tfoot>
        )}
      </table>
      <Button class="save quiet small" title="Save the bars" text="SVG" onClick={saved} />
    </div>
  );
}

/** Bars below each other on one scale, each as thick as the others. */
export function Strip({ of }: Readonly<{ of: readonly ReturnType<SpanOf>[] }>): preact.JSX.Element {
  return (
    <svg viewBox={`0 0 100 ${of.length}`} preserveAspectRatio="none" aria-hidden="true">
      {of.map((span, index) => (
        <rect key={index} {...span} y={index} height={of.length > 1 ? 0.9 : 1} />
      ))}
    </svg>
  );
}

const MOST_BARS = 64;

type SparkProps = Readonly<{ heights: readonly number[]; ends?: readonly [string, string] }>;

/** Shows a bar for each number, or for the largest of several; `ends` are written below both ends. */
export function Spark({ heights, ends }: SparkProps): preact.JSX.Element {
  const count = Math.min(MOST_BARS, heights.length);
  const placeOf = (bar: number): number => Math.floor((bar * heights.length) / count);
  const bars = Array.from(
    { length: count },
    (_, bar) => greatest(heights.slice(placeOf(bar), placeOf(bar + 1)), Math.abs) ?? 0,
  );
  const [top, bottom] = [Math.max(0, ...bars), Math.min(0, ...bars)];
  const unit = 1 / (top - bottom || 1);
  return (
    <div class="spark">
      <svg viewBox={`0 0 ${count} 1`} preserveAspectRatio="none" aria-hidden="true">
        {bars.map((height, bar) => (
          <rect
            key={bar}
            x={bar}
            y={(top - Math.max(height, 0)) * unit}
            width={0.88}
            height={Math.abs(height) * unit}
          />
        ))}
      </svg>
      {ends && (
        <p class="ends muted small">
          <span>{ends[0]}</span>
          <span>{ends[1]}</span>
        </p>
      )}
    </div>
  );
}
