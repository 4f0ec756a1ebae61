/** A series [time, features]: what was sent as lines over time, each above its attribution. */

import { useMemo, useState } from "preact/hooks";
import { type Part, statisticsOf, weightsOfFeatures } from "../measures/index.js";
import { short } from "../ui/index.js";
import { Canvas, Legend } from "./Picture.js";
import { pixelsOf, type Scale } from "./colours.js";

interface SeriesProps {
  readonly part: Part;
  readonly scale: Scale;
  /** Of the features, if they have any. */
  readonly names: readonly string[];
  /** What was sent. */
  readonly beside?: ArrayLike<number> | undefined;
}

const MOST_FEATURES = 6;
const HEIGHT = 100;

/** Shows the features with the largest sums of magnitudes, and below them the numbers at the time that is pointed at. */
export function Series({ part, scale, names, beside }: SeriesProps): preact.JSX.Element {
  const { values, shape } = part;
  const [steps = 1, features = 1] = shape.slice(-2);
  const [told, tell] = useState("");
  const shown = useMemo(() => weightsOfFeatures(part).slice(0, MOST_FEATURES), [part]);
  const column = (of: ArrayLike<number>, feature: number): number[] =>
    Array.from({ length: steps }, (_, step) => of[step * features + feature] ?? NaN);
  const left = shown.length < features ? `, ${shown.length} of ${features} features` : "";
  return (
    <div class="series small">
      <Legend scale={scale} />
      {shown.map((feature) => {
        const name = names[feature] ?? `feature ${feature}`;
        const own = column(values, feature);
        const sent = beside && column(beside, feature);
        const point = (step: number): void =>
          tell(`${name}, time ${step}: ${short(own[step] ?? NaN)}${sent ? `, sent ${short(sent[step] ?? NaN)}` : ""}`);
        return (
          <figure key={feature}>
            <figcaption title={name}>
              <bdi>{name}</bdi>
            </figcaption>
            {sent && (
              <svg viewBox={`-0.5 0 ${steps} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
                <polyline points={pointsOf(sent)} />
              </svg>
            )}
            <Canvas
              {...{ pixels: pixelsOf(own, scale), width: steps, height: 1 }}
              role="img"
              aria-label={`${name} over time`}
              onPoint={point}
            />
          </figure>
        );
      })}
      <output class="muted number">{told || `time: 0 to ${steps - 1}${left}`}</output>
    </div>
  );
}

/** Returns the points of a line that is as high as the picture. */
export function pointsOf(values: readonly number[]): string {
  const { least, most } = statisticsOf(values);
  const factor = most > least ? HEIGHT / (most - least) : 0;
  return values
    .map((each, step) => `${step},${Number.isFinite(each) ? HEIGHT - (each - least) * factor : HEIGHT}`)
    .join(" ");
}
