/** The quality metrics of an explanation, each beside those of random numbers, with its curve. */

import { Better, fromMessage } from "@cutaway/client";
import { exampleOf } from "../state/exchange.js";
import { Table } from "../ui/parts.js";
import { short } from "../ui/text.js";
import type { ExplanationProps } from "./Values.js";

const WORDS: Partial<Record<Better, string>> = {
  [Better.HIGHER]: "higher is better",
  [Better.LOWER]: "lower is better",
  [Better.ZERO]: "near 0 is better",
};

/** Shows the metrics of one example, if the question has any. */
export function Quality({ asked, row, attribution }: ExplanationProps): preact.JSX.Element | null {
  const { metrics } = attribution.message;
  if (metrics.length === 0) return null;
  const compared = metrics.filter(({ random }) => Number.isFinite(random[row]));
  const won = compared.filter(({ values, random, better }) => {
    const above = Number(values[row]) - Number(random[row]);
    return better === Better.LOWER ? above < 0 : above > 0;
  });
  return (
    <>
      <Table
        kind="quality"
        heads={["Metric", "Value", "Random"]}
        rows={metrics.map(({ name, values, random, better, curve }) => [
          <>
            {name.replaceAll("_", " ")}
            <p class="muted small">{WORDS[better]}</p>
            {curve && <Curve values={exampleOf(asked, fromMessage(curve), row).values} />}
          </>,
          values[row],
          random[row],
        ])}
      />
      {compared.length > 0 && (
        <p class="muted small">
          Better than an attribution of random numbers in {won.length} of {compared.length} metrics.
        </p>
      )}
    </>
  );
}

const [WIDTH, HEIGHT] = [96, 24] as const;

/** A line through the values, from the first step to the last. */
function Curve({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const all = Array.from(values);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const points = all.map((value, index) => {
    const x = (WIDTH * index) / Math.max(1, all.length - 1);
    return `${x.toFixed(1)},${(HEIGHT - 1 - ((HEIGHT - 2) * (value - least)) / (most - least || 1)).toFixed(1)}`;
  });
  const label = `from ${short(all[0] ?? Number.NaN)} to ${short(all.at(-1) ?? Number.NaN)}`;
  return (
    <svg class="curve" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      <polyline points={points.join(" ")} />
    </svg>
  );
}
