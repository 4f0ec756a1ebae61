/** Fields for a further part of the question, and the button that asks for it. */

import { CutawayError, type Question } from "@cutaway/client";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ask, asked, client, note, question } from "../state/index.js";
import { Button, Failure, Form } from "../ui/index.js";

interface AskingProps {
  /** What the button says that asks. */
  readonly label: string;
  /** Returns what is asked for. */
  readonly parts: () => Partial<Question>;
  /** Whether it may take long: it is asked only when a person has seen how many passes it takes. */
  readonly costly?: boolean;
  readonly children: ComponentChildren;
}

/** Shows the fields, then what the answer costs, if that may be much, then the button that asks. */
export function Asking({ label, parts, costly = false, children }: AskingProps): preact.JSX.Element {
  const [told, setTold] = useState<bigint | CutawayError>();
  const estimate = async (): Promise<void> => {
    const now = question.value ?? asked.value?.question;
    if (!now) return;
    const { model, inputs, target, featureNames } = now;
    const alone = { model, inputs, ...(target && { target }), ...(featureNames && { featureNames }), ...parts() };
    const outline = client.value.inspect({ ...alone, inputs, options: { dryRun: true } });
    setTold(await outline.then(({ message }) => message.estimate?.passes, note));
  };
  const run = (): void => void ask({ ...parts(), generate: undefined });
  const forget = (): void => setTold(undefined);
  return (
    <div onInput={forget} onChange={forget} aria-live="polite">
      <Form onDone={costly ? () => void estimate() : run}>
        {children}
        <Button text={costly ? "What does it cost?" : label} type="submit" />
      </Form>
      {told instanceof CutawayError && <Failure error={told} />}
      {typeof told === "bigint" && (
        <p class="tools">
          At most {told.toLocaleString("en")} passes of one example.
          <Button text={label} class="primary" onClick={run} />
        </p>
      )}
    </div>
  );
}
