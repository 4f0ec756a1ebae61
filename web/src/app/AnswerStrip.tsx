/** The last answer in one line, above every view; and what is under way. */

import { useEffect, useState } from "preact/hooks";
import { Select } from "./controls.js";
import { percent } from "../pictures/text.js";
import { ask, asked, cancel, complete, model, opening, row, since } from "../state/asking.js";
import { type Asked, rowsOf } from "../state/asked.js";

/** Shows the line, from which every view can ask. */
export function AnswerStrip(): preact.JSX.Element | null {
  const answer = asked.value;
  const began = since.value;
  if (model.value === undefined) return null;
  const rows = answer ? rowsOf(answer) : 1;
  return (
    <div class="strip">
      <output>
        {answer && opening.value === undefined ? <Said answer={answer} /> : <span class="muted">{waitingText()}</span>}
      </output>
      {rows > 1 && (
        <Select
          label="Example"
          of={Array.from({ length: rows }, (_, each) => [each, `${each + 1} of ${rows}`] as const)}
          value={row.value}
          onChoose={(each) => (row.value = each)}
        />
      )}
      <span class="grow" />
      {began === undefined ? (
        <button class="primary" disabled={!complete.value} title="Ctrl+Enter" onClick={() => void ask()}>
          {answer ? "Ask again" : "Ask"}
        </button>
      ) : (
        <>
          <Elapsed began={began} />
          <button onClick={cancel}>Stop</button>
          <progress aria-label="The server works" />
        </>
      )}
    </div>
  );
}

/** Returns what there is to say while there is no answer. */
function waitingText(): string {
  if (opening.value !== undefined) return `Opening ${opening.value}…`;
  return complete.value ? "Ready to ask" : "No input yet";
}

function Said({ answer: { reply, milliseconds } }: { answer: Asked }): preact.JSX.Element {
  const own = reply.classes[row.value];
  const all = reply.attributions.length;
  const failed = reply.attributions.filter(({ message }) => message.error).length;
  return (
    <>
      <bdi class="said">{own ? own.label || `class ${own.index}` : Object.keys(reply.predictions).join(", ")}</bdi>
      <span class="muted">
        {own && percent(own.probability)} in {milliseconds.toFixed(0)} ms
      </span>
      {failed > 0 && (
        <span class="bad">
          {failed} of {all} {all === 1 ? "explanation" : "explanations"} failed
        </span>
      )}
    </>
  );
}

function Elapsed({ began }: { began: number }): preact.JSX.Element {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 100);
    return (): void => clearInterval(timer);
  }, []);
  return <span class="muted number">{(Math.max(0, now - began) / 1000).toFixed(1)} s</span>;
}
