/** Named numbers as bars, to the left or the right of zero. */

import { save, svgOf } from "./saving.js";
import { short } from "./text.js";
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
}

/** Shows the bars. */
export function Bars({ bars, lengthOf, textOf = short, paths = false, ticks = [] }: Props): preact.JSX.Element {
  const most = Math.max(...bars.map(({ value }) => Math.abs(value)).filter(Number.isFinite), 1e-30);
  const length = lengthOf ?? ((value: number): number => Math.abs(value) / most);
  const part = (value: number): number => (Number.isFinite(value) ? length(value) : 0);
  const signed = bars.some(({ value }) => value < 0);
  const places = bars.map(({ value, begin }): [number, number] => {
    const width = (signed ? 50 : 100) * part(value);
    return [signed ? (value < 0 ? 50 - width : 50) : begin ? 100 * part(begin) : 0, width];
  });
  return (
    <div class="savable">
      <table class={signed ? "named-bars signed" : "named-bars"}>
        <tbody>
          {bars.map(({ name, value, about }, index) => {
            const [begin = 0, width = 0] = places[index] ?? [];
            return (
              <tr key={index} class={value < 0 ? "negative" : ""}>
                <th scope="row" title={name} class={paths ? "path" : ""}>
                  <bdi>{name}</bdi>
                  {about && <span class="muted small">{about}</span>}
                </th>
                <td class="bar">
                  <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
                    <rect x={begin} width={width} height={1} />
                  </svg>
                </td>
                <td class="number" data-value={value}>
                  {textOf(value)}
                </td>
              </tr>
            );
          })}
        </tbody>
        {ticks.length > 0 && (
          <tfoot aria-hidden="true">
            <tr>
              <td />
              <td class="ticks">
                {ticks.map((tick) => (
                  <span key={tick} style={{ insetInlineStart: `${100 * part(tick)}%` }}>
                    {short(tick)}
                  </span>
                ))}
              </td>
            </tr>
          </tfoot>
        )}
      </table>
      <button
        class="save quiet small"
        title="Save the bars"
        onClick={() => save("bars.svg", svgOf(bars, places, textOf))}
      >
        SVG
      </button>
    </div>
  );
}
