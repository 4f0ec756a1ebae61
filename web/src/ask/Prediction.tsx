/** What the model says: classes with their probabilities, the elements of its outputs, or the text that it wrote. */

import { byName } from "@cutaway/client";
import { BeforeAfter } from "../edits/BeforeAfter.js";
import { Receipts } from "../edits/Receipts.js";
import { Written } from "./Writing.js";
import { percent, shapeText } from "../ui/text.js";
import { Bars } from "../pictures/Bars.js";
import type { Exchange } from "../state/exchange.js";
import { areLogits, barsOf, outputsOf } from "./probabilities.js";

/** Shows the prediction of one example, and what it was without the edits of the question. */
export function Prediction({ asked, row }: { asked: Exchange; row: number }): preact.JSX.Element {
  const { reply } = asked;
  const outputs = outputsOf(reply);
  const unedited = byName(reply.message.uneditedPredictions?.outputs ?? []);
  if (reply.message.generated.length > 0) {
    return (
      <>
        <Written {...{ asked, row }} />
        <Receipts asked={asked} />
        <Warnings asked={asked} />
      </>
    );
  }
  return (
    <>
      {outputs.length === 0 && <p class="muted">Nothing came back: the question leaves predictions out.</p>}
      {outputs.map(([name, output]) => (
        <figure key={name} class="prediction">
          <figcaption class="muted small">
            <bdi class="mono">{name}</bdi> {shapeText(output.shape)}
            {areLogits(asked, name) ? ", probabilities" : ", first elements"}
          </figcaption>
          {unedited[name] ? (
            <BeforeAfter tried={{ before: unedited, after: reply.predictions }} {...{ asked, row, name }} />
          ) : (
            <Bars
              bars={barsOf(asked, name, output, row)}
              {...(areLogits(asked, name) ? { lengthOf: (value: number) => value, textOf: percent } : {})}
            />
          )}
        </figure>
      ))}
      <Receipts asked={asked} />
      <Warnings asked={asked} />
    </>
  );
}

function Warnings({ asked: { reply } }: { asked: Exchange }): preact.JSX.Element | null {
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
