/** View 8: the question in other languages, and the answer as a file. */

import type { Question } from "@cutaway/client";
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { save } from "../pictures/saving.js";
import { changed, question as now, textOf, type ViewProps, writeFragment } from "../state/index.js";
import { Button, Check, Choice, Panel, useFields, useLoaded } from "../ui/index.js";
import { npzFile, storedFile } from "./files.js";
import { isForFile, type Language, LANGUAGES, programOf, QUESTION_FILE } from "./programs.js";
import "./take.css";

type Fields = Readonly<{ language: Language; withInputs: boolean }>;

/** Shows the question as programs, and saves files. */
export function TakeView({ asked }: ViewProps): preact.JSX.Element {
  const [{ language, withInputs }, field] = useFields<Fields>({ language: "python", withInputs: false });
  const question = now.value ?? asked.question;
  const fragment = writeFragment({ view: "ask", question: textOf(question, withInputs) });
  const name = question.model.replaceAll("/", "-");
  return (
    <div class="take">
      {changed.value && (
        <p class="unsure">
          The question has changed since the answer.{" "}
          {now.value
            ? "Programs and the link ask it as it is now; the answer is that to the question before."
            : "It lacks an input: programs and the link ask it as it was."}
        </p>
      )}
      <Panel id="program" title="Ask it elsewhere">
        <Choice label="As" of={LANGUAGES} {...field("language")} />
        <Program {...{ question, language }} />
      </Panel>
      <Panel id="link" title="Link to this question">
        <p class="muted">What stands behind # is never sent to a server. The token is not in it.</p>
        <Check label="Put my input into the link" {...field("withInputs")} />
        <Snippet text={new URL(fragment, location.href).href} label="link" />
      </Panel>
      <Panel id="files" title="Keep the answer">
        {!asked.whole && <p class="unsure">Not all explanations are in the answer: files have those that are there.</p>}
        <dl class="keep">
          <Kept title="Save the explanation" onSave={() => save(`${name}.cutaway`, storedFile(asked))}>
            Question and answer in one file, inputs included.{" "}
            <code>cutaway verify {name}.cutaway --address HOST:PORT</code> asks it again by gRPC and compares.
          </Kept>
          <Kept title="Save the arrays" onSave={() => save(`${name}.npz`, npzFile(asked))}>
            Every tensor of the answer, for <code>numpy.load</code>.
          </Kept>
          <Kept title="Save the question" onSave={() => save(QUESTION_FILE, textOf(question, true))}>
            The contract’s JSON{isForFile(question) && ", which the programs beside this read"}.
          </Kept>
        </dl>
      </Panel>
    </div>
  );
}

/** The question in a language. */
function Program({ question, language }: { question: Question; language: Language }): preact.JSX.Element {
  const { value, failure } = useLoaded(() => programOf(question, language), [question, language]);
  return <Snippet text={value ?? failure?.message ?? ""} label={LANGUAGES[language]} />;
}

type KeptProps = Readonly<{ title: string; onSave: () => void; children: ComponentChildren }>;

function Kept({ title, onSave, children }: KeptProps): preact.JSX.Element {
  return (
    <div>
      <dt>
        <Button text={title} onClick={onSave} />
      </dt>
      <dd>{children}</dd>
    </div>
  );
}

function Snippet({ text, label }: { text: string; label: string }): preact.JSX.Element {
  const [taken, setTaken] = useState("");
  const shown = useRef<HTMLPreElement>(null);
  const [verb, done] = isSecureContext ? ["Copy", "Copied"] : ["Select", "Selected"]; // plain HTTP has no clipboard
  const take = async (): Promise<void> => {
    if (isSecureContext) await navigator.clipboard.writeText(text);
    else if (shown.current) getSelection()?.selectAllChildren(shown.current);
    setTaken(text);
  };
  return (
    <div class="snippet">
      <pre ref={shown} tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
      <button class="quiet" onClick={() => void take()}>
        <span role="status">{taken && taken === text ? done : verb}</span>
      </button>
    </div>
  );
}
