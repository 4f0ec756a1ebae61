/** Fields for a further part of the question, and the button that asks for it. */

import type { Question } from "@cutaway/client";
import type { ComponentChildren } from "preact";
import { ask, client, type Exchange, question } from "../state/index.js";
import { Button, Failure, Form, useCall } from "../ui/index.js";

interface AskingProps {
  readonly asked: Exchange;
  /** What the button says that asks. */
  readonly label: string;
  /** Returns what is asked for. */
  readonly parts: () => Partial<Question>;
  /** Whether it may take long: it is asked only when a person has seen how many passes it takes. */
  readonly costly?: boolean;
  readonly children: ComponentChildren;
}

/** Shows the fields, then what the answer costs, if that may be much, then the button that asks. */
export function Asking({ asked, label, parts, costly = false, children }: AskingProps): preact.JSX.Element {
  const [{ value: passes, failure }, tell] = useCall<bigint | undefined>();
  const estimate = async (): Promise<bigint | undefined> => {
    const { model, inputs, target, featureNames } = question.value ?? asked.question;
    const alone = { model, ...(target && { target }), ...(featureNames && { featureNames }), ...parts() };
    return (await client.value.inspect({ ...alone, inputs, options: { dryRun: true } })).message.estimate?.passes;
  };
  const run = (): void => void ask({ ...parts(), generate: undefined });
  const forget = (): void => tell();
  return (
    <div onInput={forget} onChange={forget} aria-live="polite">
      <Form onDone={costly ? () => tell(estimate()) : run}>
        {children}
        <Button text={costly ? "What does it cost?" : label} type="submit" />
      </Form>
      {failure && <Failure error={failure} />}
      {passes !== undefined && (
        <p class="tools">
          At most {passes.toLocaleString("en")} passes of one example.
          <Button text={label} class="primary" onClick={run} />
        </p>
      )}
    </div>
  );
}
