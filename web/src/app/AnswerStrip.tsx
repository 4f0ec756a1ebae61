/** The last answer in one line, above every view; and what is under way. */

import { useEffect, useState } from "preact/hooks";
import { said } from "../ask/History.js";
import { percent } from "../ask/Prediction.js";
import { ask, asked, cancel, complete, row, rowsOf, since } from "../state/asking.js";

/** Shows the line, once there is something to show. */
export function AnswerStrip(): preact.JSX.Element | null {
  const answer = asked.value;
  const began = since.value;
  if (answer === undefined && began === undefined) return null;
  const rows = answer ? rowsOf(answer.reply) : 1;
  const own = answer?.reply.classes[row.value];
  return (
    <div class="strip">
      {answer && (
        <output>
          <bdi>{own ? `${own.label || `class ${own.index}`} ${percent(own.probability)}` : said(answer)}</bdi>
          <span class="muted"> {answer.milliseconds.toFixed(0)} ms</span>
        </output>
      )}
      {rows > 1 && (
        <label>
          Example
          <select value={row.value} onChange={({ currentTarget }) => (row.value = Number(currentTarget.value))}>
            {Array.from({ length: rows }, (_, each) => (
              <option key={each} value={each}>
                {each + 1} of {rows}
              </option>
            ))}
          </select>
        </label>
      )}
      <span class="grow" />
      {began === undefined ? (
        <button class="quiet" disabled={!complete.value} onClick={() => void ask()}>
          Ask again
        </button>
      ) : (
        <>
          <Elapsed began={began} />
          <button class="quiet" onClick={cancel}>
            Stop
          </button>
        </>
      )}
      {began !== undefined && <progress aria-label="The server works" />}
    </div>
  );
}

function Elapsed({ began }: { began: number }): preact.JSX.Element {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => {
      setNow(performance.now());
    }, 100);
    return (): void => {
      clearInterval(timer);
    };
  }, []);
  return <span class="muted number">{(Math.max(0, now - began) / 1000).toFixed(1)} s</span>;
}
