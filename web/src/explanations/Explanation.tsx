/** One explanation: what it shows, whether it can be trusted, and its sums. */

import { Failure } from "../ui/problems.js";
import { Button } from "../ui/controls.js";
import { FactLine } from "../ui/parts.js";
import { Checks } from "./Checks.js";
import { type ExplanationProps, Values } from "./Values.js";
import { comparedIn, VerdictBadge, verdictOn } from "../ui/verdicts.js";
import { askedParts } from "../state/draft.js";
import { go } from "../state/route.js";
import { elementOf, exampleOf } from "../state/asked.js";
import { statisticsOf } from "../measures/statistics.js";

/** Shows it, for one example. */
export function Explanation({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { method, layer, message } = attribution;
  const { attributions } = askedParts(asked.question);
  const all = asked.reply.attributions; // one for each of several targets, whose methods cannot be told then
  const smoothed = attributions.length === all.length && attributions[all.indexOf(attribution)]?.noiseTunnel;
  const target = message.targets[row];
  const explained = target === undefined ? undefined : elementOf(asked, Number(target));
  return (
    <article class="panel explanation">
      <div class="tools">
        <h2>
          {method} {smoothed && "with noise "}
          {layer && <bdi class="mono muted">{layer}</bdi>}
        </h2>
        {message.error === undefined && <VerdictBadge verdict={verdictOn(attribution, row)} />}
      </div>
      {explained && (
        <p class="muted small">
          of {explained.kind} <bdi>{explained.name}</bdi>
        </p>
      )}
      {message.error ? (
        <Failure error={message.error}>
          <Button text="Change it under Ask" onClick={() => go("ask")} />
        </Failure>
      ) : asked.reply.message.explainedRows[row] === false ? (
        <p class="muted">This example does not meet the question’s condition, and was not explained.</p>
      ) : (
        <>
          <Values {...{ asked, row, attribution }} />
          <Sums {...{ asked, row, attribution }} />
          <Checks compared={comparedIn(attribution, row)} />
        </>
      )}
    </article>
  );
}

/** The sum of the values beside the change of the target, where the method promises that they are equal. */
function Sums({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { valueAtInput, valueAtBaseline, convergenceDelta, metrics } = attribution.message;
  const sums = Object.values(attribution.values).map(
    (tensor) => statisticsOf(exampleOf(asked, tensor, row).values).sum,
  );
  return (
    <FactLine
      facts={[
        ["sum", sums.reduce((total, each) => total + each, 0)],
        ["target at the input", valueAtInput[row]],
        ["at the baseline", valueAtBaseline[row]],
        ["sum − change of the target", convergenceDelta[row]],
        ...metrics.map(({ name, values }) => [name.replaceAll("_", " "), values[row]] as const),
      ]}
    />
  );
}
