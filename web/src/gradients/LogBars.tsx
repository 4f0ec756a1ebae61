/** Sizes that differ by powers of ten, as bars on a logarithmic scale. */

import { scaleLog } from "d3-scale";
import type { Named } from "../pictures/Bars.js";
import { short } from "../pictures/text.js";

/** Shows bars; a size of zero has none. */
export function LogBars({ bars }: { bars: readonly Named[] }): preact.JSX.Element {
  const sizes = bars.map(({ value }) => value).filter((value) => value > 0 && Number.isFinite(value));
  const least = Math.min(...sizes, 1) / 10;
  const width = scaleLog([least, Math.max(...sizes, least * 100)], [0, 100]).clamp(true);
  return (
    <table class="named-bars">
      <tbody>
        {bars.map(({ name, value }) => (
          <tr key={name} class={value > 0 ? "" : "vanished"}>
            <th scope="row" title={name}>
              <bdi>{name}</bdi>
            </th>
            <td class="bar">
              <svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">
                <rect width={value > 0 ? width(value) : 0} height={1} />
              </svg>
            </td>
            <td class="number" data-value={value}>
              {value === 0 ? "0, vanished" : short(value)}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
