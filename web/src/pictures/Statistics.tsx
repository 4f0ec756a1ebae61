/** The statistics of a tensor in a line. */

import { FactLine } from "../ui/parts.js";
import { statisticsOf } from "../measures/statistics.js";

/** Shows what there is to say of some numbers. */
export function Statistics({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const { least, mean, most: largest, deviation, norm, zeros, notFinite } = statisticsOf(values);
  const facts = { least, mean, largest, deviation, norm, zeros, "not finite": notFinite || undefined };
  return <FactLine facts={Object.entries(facts)} />;
}
