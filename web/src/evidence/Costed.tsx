/** A question that may take long: it is asked only when a person has seen how many passes it takes. */

import { CutawayError } from "@cutaway/client";
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { alter, client, type Draft, note, question, type ViewProps } from "../state/index.js";
import { Button, Failure, Form } from "../ui/index.js";

interface Props extends Pick<ViewProps, "asked" | "ask"> {
  /** What the button says that asks. */
  readonly label: string;
  /** Returns what is asked for. */
  readonly parts: () => Partial<Draft>;
  readonly children: ComponentChildren;
}

/** Shows the fields, then what the answer costs, then the button that asks. */
export function Costed({ asked, ask, label, parts, children }: Props): preact.JSX.Element {
  const [told, setTold] = useState<bigint | CutawayError>();
  const estimate = async (): Promise<void> => {
    const { model, inputs, target, featureNames } = question.value ?? asked.question;
    const alone = { model, inputs, ...(target && { target }), ...(featureNames && { featureNames }), ...parts() };
    const outline = client.value.inspect({ ...alone, inputs, options: { dryRun: true } });
    setTold(await outline.then(({ message }) => message.estimate?.passes, note));
  };
  const run = (): void => {
    alter({ ...parts(), generate: undefined });
    ask({});
  };
  const forget = (): void => setTold(undefined);
  return (
    <div onInput={forget} onChange={forget} aria-live="polite">
      <Form onDone={() => void estimate()}>
        {children}
        <Button text="What does it cost?" type="submit" />
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
