/** View 4: explanations side by side, each with its verdict. */

import { HookPoint } from "@cutaway/client";
import { Button } from "../app/controls.js";
import { Empty } from "../app/parts.js";
import { AgreementTable } from "./AgreementTable.js";
import { backgroundOf } from "./backgrounds.js";
import { Explanation } from "./Explanation.js";
import { requestFor } from "../ask/methods.js";
import { capturing, requestAt } from "../models/places.js";
import type { ViewProps } from "../state/asked.js";
import "./explanations.css";

/** What is asked for where a person has chosen nothing. */
const USUAL = ["saliency", "integratedGradients", "deepLift"];

/** Shows every explanation of one example. */
export function ExplanationsView({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const { attributions } = asked.reply;
  const explain = (): void =>
    ask({ attributions: USUAL.map((each) => requestFor(each, asked.model)), attributionErrorsInPlace: true });
  if (attributions.length === 0) {
    return (
      <Empty
        title="No explanation was asked for"
        text="Choose methods under Ask, or begin with three that explain the inputs."
        action="Explain"
        onAct={explain}
      />
    );
  }
  const { inputs } = asked.question;
  const ofFiles =
    Array.isArray(inputs) && inputs.some((each) => typeof each !== "string") && !backgroundOf(asked, row, "");
  return (
    <>
      {ofFiles && (
        <div class="tools unseen">
          <Button
            text="Show what the model made of the file below"
            onClick={() => ask(capturing(asked.question, requestAt("", HookPoint.INPUT)))}
          />
        </div>
      )}
      <div class="explanations">
        {attributions.map((attribution, index) => (
          <Explanation key={index} asked={asked} row={row} attribution={attribution} />
        ))}
      </div>
      <AgreementTable asked={asked} row={row} />
    </>
  );
}
