/** What was asked during this visit. */

import { Panel } from "../app/parts.js";
import { asked, history, recall } from "../state/asking.js";
import type { Asked } from "../state/asked.js";
import { percent } from "../pictures/text.js";

/** Lists earlier questions; each shows itself again, with its answer. */
export function History(): preact.JSX.Element | null {
  if (history.value.length < 2) return null;
  return (
    <Panel id="history" title="Asked before">
      <ol class="history">
        {history.value.map((each, index) => (
          <li key={history.value.length - index}>
            <button type="button" aria-current={each === asked.value} onClick={() => recall(each)}>
              <bdi>{said(each)}</bdi>
              <span class="muted small">
                <bdi>{each.model.model?.model}</bdi>, {madeText(each)}, {each.milliseconds.toFixed(0)} ms
              </span>
            </button>
          </li>
        ))}
      </ol>
    </Panel>
  );
}

function madeText({ reply }: Asked): string {
  const made = reply.attributions.filter(({ message }) => !message.error).length;
  return made === 1 ? "1 explanation" : `${made} explanations`;
}

/** Returns an answer in a few words. */
export function said({ reply }: Asked): string {
  const [first] = reply.classes;
  if (!first) return Object.keys(reply.predictions).join(", ");
  return `${first.label || `class ${first.index}`}, ${percent(first.probability)}`;
}
