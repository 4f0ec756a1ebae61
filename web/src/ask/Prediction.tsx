/** What the model says: classes with their probabilities, the elements of its outputs, or the text that it wrote. */

import { byName } from "@cutaway/client";
import { BeforeAfter, Receipts } from "../edits/BeforeAfter.js";
import { Bars } from "../pictures/Bars.js";
import { alter, ask, contrast, type Exchange } from "../state/index.js";
import { percent, shapeText } from "../ui/index.js";
import { Written } from "./Writing.js";
import { areLogits, type Bar, barsOf, outputsOf } from "./probabilities.js";
import { mayInspect } from "./start.js";

/** Shows the prediction of one example, and what it was without the edits of the question. */
export function Prediction({ asked, row }: { asked: Exchange; row: number }): preact.JSX.Element {
  return (
    <>
      {asked.reply.message.generated.length ? <Written {...{ asked, row }} /> : <Outputs {...{ asked, row }} />}
      <Receipts asked={asked} />
      <Warnings asked={asked} />
    </>
  );
}

function Outputs({ asked, row }: { asked: Exchange; row: number }): preact.JSX.Element {
  const { reply } = asked;
  const outputs = outputsOf(reply);
  const unedited = byName(reply.message.uneditedPredictions?.outputs ?? []);
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
            <Classes {...{ asked, name }} bars={barsOf(asked, name, output, row)} />
          )}
        </figure>
      ))}
    </>
  );
}

type ClassesProps = Readonly<{ asked: Exchange; name: string; bars: readonly Bar[] }>;

/** Shows classes with their probabilities, or elements; a click on another class asks why it is not that one. */
function Classes({ asked, name, bars }: ClassesProps): preact.JSX.Element {
  const [best, other] = bars;
  if (!best || !areLogits(asked, name)) return <Bars bars={bars} />;
  const shown = { bars, lengthOf: (value: number): number => value, textOf: percent };
  if (!other || !mayInspect(asked.model)) return <Bars {...shown} />;
  const choose = (at: number): void => {
    alter({ target: at > 0 ? contrast(best.index, (bars[at] ?? other).index) : undefined });
    void ask();
  };
  const what = (name: string): string => (name === best.name ? `Explain ${name}` : `Why ${best.name}, not ${name}?`);
  return (
    <>
      <Bars {...shown} onChoose={{ what, choose }} />
      <p class="muted small">Click another class to explain why it is not that one.</p>
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
