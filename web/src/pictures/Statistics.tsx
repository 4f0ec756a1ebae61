/** The statistics of a tensor in a line. */

import { FactLine } from "../app/parts.js";
import { statisticsOf } from "../measures/statistics.js";

/** Shows what there is to say of some numbers. */
export function Statistics({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const { least, mean, most, deviation, norm, zeros, notFinite } = statisticsOf(values);
  return (
    <FactLine
      facts={[
        ["least", least],
        ["mean", mean],
        ["largest", most],
        ["deviation", deviation],
        ["norm", norm],
        ["zeros", zeros],
        ["not finite", notFinite || undefined],
      ]}
    />
  );
}
