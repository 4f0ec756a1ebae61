/** The last answer in one line, above every view; and what is under way. */

import { Verdict } from "@cutaway/client";
import { useEffect, useMemo, useState } from "preact/hooks";
import { outputText } from "../ask/History.js";
import { textOf } from "../ask/Writing.js";
import { backgroundOf, useFile } from "../explanations/Values.js";
import { Canvas } from "../pictures/Picture.js";
import { ask, asked, cancel, changed, complete, model, opening, progress, row, since } from "../state/asking.js";
import { examplesIn } from "../state/draft.js";
import { type Exchange, rowsOf } from "../state/exchange.js";
import { Button, comparedIn, percent, Select, verdictOn } from "../ui/index.js";

/** Shows the line, from which every view can ask. */
export function AnswerStrip(): preact.JSX.Element | null {
  const answer = asked.value;
  const began = since.value;
  if (model.value === undefined) return null;
  const rows = answer ? rowsOf(answer) : 1;
  const examples = Array.from({ length: rows }, (_, each) => [each, `${each + 1} of ${rows}`] as const);
  const text = answer && !changed.value ? "Ask again" : "Ask";
  return (
    <div class="strip">
      <output>
        {answer && opening.value === undefined ? <Said answer={answer} /> : <span class="muted">{waitingText()}</span>}
      </output>
      {rows > 1 && <Select label="Example" of={examples} value={row.value} onChange={(each) => (row.value = each)} />}
      <span class="grow" />
      {began === undefined ? (
        <Button text={text} class="primary" disabled={!complete.value} title="Ctrl+Enter" onClick={submit} />
      ) : (
        <>
          <Elapsed began={began} />
          <Button text="Stop" onClick={cancel} />
          <Bar />
        </>
      )}
    </div>
  );
}

/** How far the explanations are, as far as the server has told. */
function Bar(): preact.JSX.Element {
  const told = progress.value;
  if (told === undefined) return <progress aria-label="The server works" />;
  const done = { value: Number(told.passesDone), max: Number(told.passes) };
  return <progress class="told" aria-label="Passes of the explanations" {...done} />;
}

/** Returns the time that is left, as people read it. */
export function leftText(seconds: number): string {
  const whole = Math.max(1, Math.round(seconds));
  return whole < 60 ? `${whole} s left` : `${Math.floor(whole / 60)} min ${whole % 60} s left`;
}

/** Returns what there is to say while there is no answer. */
function waitingText(): string {
  if (opening.value !== undefined) return `Opening ${opening.value}…`;
  return complete.value ? "Ready to ask" : "No input yet";
}

/** Asks what the page shows: not while a field has what is not taken. */
export function submit(): void {
  const wrong = document.querySelector<HTMLElement>("main [aria-invalid=true]");
  wrong?.closest("details")?.setAttribute("open", "");
  if (wrong) wrong.focus();
  else void ask();
}

function Said({ answer }: { answer: Exchange }): preact.JSX.Element {
  const { question, reply, whole, milliseconds } = answer;
  const file = useFile(examplesIn(question)[row.value]);
  const image = useMemo(() => backgroundOf(answer, row.value, "") ?? file, [answer, row.value, file]);
  const own = reply.classes[row.value];
  const all = reply.attributions.length;
  const failed = reply.attributions.filter(({ message }) => message.error).length;
  const wrong = reply.attributions.filter((each) => verdictOn(each, row.value) === Verdict.DISAGREES).length;
  const counted = (count: number): string => `${count} of ${all} explanation${all === 1 ? "" : "s"}`;
  const { replay } = reply.message;
  const replayed = comparedIn({ checks: replay ? [replay] : [] }, row.value);
  return (
    <>
      {image && <Canvas class="preview" aria-hidden="true" {...image} />}
      <bdi class={changed.value ? "said stale" : "said"}>
        {own ? own.label || `class ${own.index}` : textOf(reply.message, row.value) || outputText(reply, row.value)}
      </bdi>
      <span class="muted">
        {own && percent(own.probability)} in {milliseconds.toFixed(0)} ms
      </span>
      {!whole && since.value === undefined && <span class="unsure">not all explanations</span>}
      {(question.edits ?? []).length > 0 && <span class="unsure">edited</span>}
      {failed > 0 && <span class="bad">{counted(failed)} failed</span>}
      {replayed.some(({ verdict }) => verdict === Verdict.DISAGREES) && <span class="bad">the replay disagrees</span>}
      {wrong > 0 && <span class="bad">{counted(wrong)} wrong: the raw hooks disagree</span>}
      {changed.value && <span class="unsure">The question has changed since.</span>}
    </>
  );
}

function Elapsed({ began }: { began: number }): preact.JSX.Element {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 100);
    return (): void => clearInterval(timer);
  }, []);
  const left = progress.value && `, ${leftText(progress.value.secondsLeft)}`;
  return (
    <span class="muted number">
      {(Math.max(0, now - began) / 1000).toFixed(1)} s{left}
    </span>
  );
}
