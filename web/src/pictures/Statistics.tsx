/** The statistics of a tensor in a line. */

import { statisticsOf } from "../measures/statistics.js";
import { short } from "./text.js";

/** Shows what there is to say of some numbers. */
export function Statistics({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const found = statisticsOf(values);
  const facts: [string, string][] = [
    ["least", short(found.least)],
    ["mean", short(found.mean)],
    ["largest", short(found.most)],
    ["deviation", short(found.deviation)],
    ["norm", short(found.norm)],
    ["zeros", `${(100 * found.zeros).toFixed(1)} %`],
    ...(found.notFinite ? [["not finite", String(found.notFinite)] as [string, string]] : []),
  ];
  return (
    <dl class="line-of-facts small">
      {facts.map(([name, value]) => (
        <div key={name} class={name === "not finite" ? "bad" : ""}>
          <dt class="muted">{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
