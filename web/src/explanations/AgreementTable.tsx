/** How far explanations of the same thing agree with each other. */

import { Panel } from "../app/Panel.js";
import type { Attribution } from "@cutaway/client";
import { agreementOf } from "../measures/agreement.js";
import { partOf } from "../measures/numbers.js";
import { short } from "../pictures/text.js";

/** Shows each pair of explanations with the same names and shapes; nothing where there is none. */
export function AgreementTable({
  attributions,
  row,
}: {
  attributions: readonly Attribution[];
  row: number;
}): preact.JSX.Element | null {
  const pairs = attributions.flatMap((one, index) =>
    attributions.slice(index + 1).flatMap((other) => {
      const [left, right] = [joined(one, row), joined(other, row)];
      return shapesOf(one) === shapesOf(other) && left.length > 1 ? [{ one, other, ...agreementOf(left, right) }] : [];
    }),
  );
  if (pairs.length === 0) return null;
  return (
    <Panel id="agreement" title="Do the methods agree?">
      <div class="wide">
        <table class="agreement">
          <thead>
            <tr>
              <th scope="col">Methods</th>
              <th scope="col">Cosine</th>
              <th scope="col">Rank correlation</th>
              <th scope="col">Largest tenth in common</th>
            </tr>
          </thead>
          <tbody>
            {pairs.map(({ one, other, cosine, ranks, top }, index) => (
              <tr key={index}>
                <th scope="row">
                  {one.method} and {other.method}
                </th>
                <td class="number">{short(cosine)}</td>
                <td class="number">{short(ranks)}</td>
                <td class="number">{(100 * top).toFixed(0)} %</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function joined({ values }: Attribution, row: number): Float64Array {
  return Float64Array.from(Object.values(values).flatMap((tensor) => Array.from(partOf(tensor, row).values)));
}

function shapesOf({ values }: Attribution): string {
  return JSON.stringify(Object.entries(values).map(([name, { shape }]) => [name, shape]));
}
