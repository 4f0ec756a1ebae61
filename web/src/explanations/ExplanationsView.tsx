/** View 4: explanations side by side, each with its verdict. */

import { HookPoint } from "@cutaway/client";
import { useState } from "preact/hooks";
import { wordsOf } from "../ask/History.js";
import { requestFor } from "../ask/methods.js";
import { capturing, requestAt } from "../models/places.js";
import { ask, draft, type Exchange, filesIn, history, rowsOf, since, type ViewProps } from "../state/index.js";
import { Button, Empty, Select } from "../ui/index.js";
import { AgreementTable, madeIn, nameOf } from "./AgreementTable.js";
import { Explanation } from "./Explanation.js";
import { backgroundOf } from "./Values.js";
import "./explanations.css";

/** What is asked for where a person has chosen nothing. */
const USUAL = ["saliency", "integratedGradients", "deepLift"];

/** Returns what tells a model from others: its name, and its weights. */
function weightsOf({ model: { model, provenance } }: Exchange): string {
  return `${model?.name ?? ""} ${provenance?.weightsSha256 ?? ""}`;
}

/** Shows every explanation of one example. */
export function ExplanationsView({ asked, row }: ViewProps): preact.JSX.Element {
  const { attributions } = asked.reply;
  const [other, setOther] = useState(0);
  const explain = (): void =>
    void ask({ attributions: USUAL.map((each) => requestFor(each, asked.model)), attributionErrorsInPlace: true });
  if (attributions.length === 0 && asked.whole) {
    const text = "Choose methods under Ask, or begin with three that explain the inputs.";
    return <Empty title="No explanation was asked for" {...{ text, action: "Explain", onAct: explain }} />;
  }
  const earlier = history.value.filter(
    (each) => each !== asked && weightsOf(each) === weightsOf(asked) && madeIn(each, 0).length,
  );
  const beside = earlier.find(({ when }) => when.getTime() === other);
  const then = beside && rowsOf(beside) > row ? row : 0;
  const others = beside ? madeIn(beside, then) : [];
  const answers = earlier.map((each) => [each.when.getTime(), wordsOf(each)] as const);
  const choices = [[0, "no other answer"] as const, ...answers];
  const look = (): void => void ask(capturing(draft.value, requestAt("", HookPoint.INPUT)));
  const ofFiles = filesIn(asked.question).length > 0 && !backgroundOf(asked, row, "");
  return (
    <>
      <div class="tools unseen">
        {ofFiles && <Button text="Show what the model made of the file below" onClick={look} />}
        {earlier.length > 0 && <Select label="Beside it" of={choices} value={beside ? other : 0} onChange={setOther} />}
      </div>
      <div class={beside ? "explanations pairs" : "explanations"}>
        {beside && <bdi class="muted">{wordsOf(asked, row)}</bdi>}
        {beside && <bdi class="muted">{wordsOf(beside, then)}</bdi>}
        {attributions.map((attribution, index) => {
          const own = { asked, row, attribution };
          const twin = others.find((each) => nameOf(each) === nameOf(own));
          return [
            <Explanation key={index} {...own} />,
            beside && (twin ? <Explanation key={`${index} beside`} {...twin} /> : <div />),
          ];
        })}
      </div>
      {!asked.whole && (
        <p class="muted" role="status">
          {since.value === undefined
            ? "There are no more: the question was ended."
            : "The next one appears here when it is done."}
        </p>
      )}
      <AgreementTable {...{ asked, row, others }} />
    </>
  );
}
