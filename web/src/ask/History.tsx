/** What was asked during this visit. */

import { asked, examplesIn, type Exchange, history, recall, rowsOf } from "../state/index.js";
import { isolated, Panel, percent, short } from "../ui/index.js";
import { textOf } from "./Writing.js";
import { outputsOf } from "./probabilities.js";

/** How much of a text is shown. */
const MOST = 40;

/** Lists earlier questions; each shows itself again, with its answer. */
export function History(): preact.JSX.Element | null {
  if (history.value.length < 2) return null;
  return (
    <Panel id="history" title="Asked before">
      <ol class="history">
        {history.value.map((each, index) => (
          <li key={history.value.length - index}>
            <button type="button" aria-current={each === asked.value} onClick={() => recall(each)}>
              <bdi>{predictionText(each)}</bdi>
              <span class="muted small">
                <bdi>{each.model.model?.model}</bdi>, {aboutText(each)}
              </span>
            </button>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

/** Returns what tells a question from others: its text, its changes, its explanations, and when it was asked. */
function aboutText({ question, reply, when }: Exchange): string {
  const [first] = examplesIn(question);
  const made = reply.attributions.filter(({ message }) => !message.error).length;
  return [
    ...(typeof first === "string" ? [`“${isolated(first.length > MOST ? `${first.slice(0, MOST)}…` : first)}”`] : []),
    ...(question.edits?.length ? ["edited"] : []),
    made === 1 ? "1 explanation" : `${made} explanations`,
    when.toLocaleTimeString("en-GB"),
  ].join(", ");
}

/** Returns an answer about an example and its question in one line. */
export function wordsOf(asked: Exchange, row = 0): string {
  return `${predictionText(asked, row)}${rowsOf(asked) > 1 ? `, example ${row + 1}` : ""}, ${aboutText(asked)}`;
}

/** Returns the outputs of an example in a few words: the number of a regression, else their names. */
export function outputText(reply: Exchange["reply"], row: number): string {
  const outputs = outputsOf(reply);
  const [name = "", only] = outputs[0] ?? [];
  if (outputs.length !== 1 || only?.data.length !== only?.shape[0] || only?.data[row] === undefined)
    return outputs.map(([each]) => each).join(", ");
  return `${name} ${short(Number(only.data[row]))}`;
}

/** Returns an answer about an example in a few words. */
export function predictionText({ reply }: Exchange, row = 0): string {
  const first = reply.classes[row];
  if (!first) return isolated(textOf(reply.message, row).slice(0, 2 * MOST) || outputText(reply, row));
  return `${isolated(first.label || `class ${first.index}`)}, ${percent(first.probability)}`;
}
