/** What the model says: classes with their probabilities, or the elements of its outputs. */

import { shapeText } from "../pictures/text.js";
import { Bars } from "../pictures/Bars.js";
import type { Asked } from "../state/asked.js";
import { classBars, elementBars } from "./probabilities.js";

const MOST = 10;

/** Shows the prediction of one example. */
export function Prediction({ asked, row }: { asked: Asked; row: number }): preact.JSX.Element {
  const { model, reply } = asked;
  const outputs = Object.entries(reply.predictions);
  return (
    <>
      {outputs.map(([name, output], index) => {
        const classes = index === 0 && reply.classes.length > 0 && output.shape.length === 2;
        const bars = classes ? classBars(output, row, model, MOST) : elementBars(output, row, MOST);
        return (
          <figure key={name} class="prediction">
            <figcaption class="muted small">
              <bdi class="mono">{name}</bdi> {shapeText(output.shape)}
              {classes ? ", probabilities" : ", first elements"}
            </figcaption>
            <Bars
              bars={bars.map(({ label, value }) => ({ name: label, value }))}
              {...(classes ? { lengthOf: (value: number) => value, textOf: percent } : {})}
            />
          </figure>
        );
      })}
      <Warnings asked={asked} />
    </>
  );
}

/** Returns a probability as people read it. */
export function percent(probability: number): string {
  if (probability < 0.0005) return "< 0.1 %";
  return `${(100 * probability).toFixed(probability > 0.9995 ? 2 : 1)} %`;
}

function Warnings({ asked: { reply } }: { asked: Asked }): preact.JSX.Element | null {
  const { warnings } = reply.message;
  if (warnings.length === 0) return null;
  return (
    <ul class="warnings">
      {warnings.map(({ subject, message }, index) => (
        <li key={index}>
          <bdi class="mono">{subject}</bdi> <bdi>{message}</bdi>
        </li>
      ))}
    </ul>
  );
}
