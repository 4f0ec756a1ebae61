/** Named numbers as bars, to the left or the right of zero. */

import { short } from "./text.js";
import "./pictures.css";

/** A bar. */
export interface Named {
  readonly name: string;
  readonly value: number;
}

/** Shows bars; the longest is `most`, or that of the largest magnitude. */
export function Bars({ bars, most }: { bars: readonly Named[]; most?: number }): preact.JSX.Element {
  const bound = most ?? Math.max(...bars.map(({ value }) => Math.abs(value)).filter(Number.isFinite), 1e-30);
  const signed = bars.some(({ value }) => value < 0);
  return (
    <table class={signed ? "named-bars signed" : "named-bars"}>
      <tbody>
        {bars.map(({ name, value }, index) => {
          const part = Number.isFinite(value) ? Math.min(1, Math.abs(value) / bound) : 0;
          const width = signed ? 50 * part : 100 * part;
          return (
            <tr key={index} class={value < 0 ? "negative" : ""}>
              <th scope="row" title={name}>
                <bdi>{name}</bdi>
              </th>
              <td class="bar">
                <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
                  <rect x={signed ? (value < 0 ? 50 - width : 50) : 0} width={width} height={1} />
                </svg>
              </td>
              <td class="number" data-value={value}>
                {short(value)}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
