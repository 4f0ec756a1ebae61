/** One explanation: what it shows, whether it can be trusted, and its sums. */

import { Verdict } from "@cutaway/client";
import { statisticsOf } from "../measures/statistics.js";
import { elementOf, exampleOf } from "../state/exchange.js";
import { askedParts } from "../state/draft.js";
import { go } from "../state/route.js";
import { Button } from "../ui/controls.js";
import { FactLine } from "../ui/parts.js";
import { Failure } from "../ui/problems.js";
import { short } from "../ui/text.js";
import { type Compared, comparedIn, VerdictBadge, verdictOn } from "../ui/verdicts.js";
import { Quality } from "./Quality.js";
import { type ExplanationProps, Values } from "./Values.js";

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
          <Quality {...{ asked, row, attribution }} />
          <Checks compared={comparedIn(attribution, row)} />
        </>
      )}
    </article>
  );
}

/** The sum of the values beside the change of the target, where the method promises that they are equal. */
function Sums({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { valueAtInput, valueAtBaseline, convergenceDelta } = attribution.message;
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
      ]}
    />
  );
}

/** Powers of ten on the scale of errors, around the tolerance. */
const DECADES = 6;

/** Shows each check. */
export function Checks({ compared }: { compared: readonly Compared[] }): preact.JSX.Element {
  if (compared.length === 0) return <p class="muted">It was not checked: the question has checks off.</p>;
  return (
    <ul class="checks">
      {compared.map(({ check, verdict, error, reason, cause }, index) => (
        <li key={index}>
          <VerdictBadge verdict={verdict} brief />
          <bdi class="small muted">{check.compared}</bdi>
          {verdict !== Verdict.NOT_APPLICABLE && <ErrorScale error={error} tolerance={check.tolerance} />}
          {reason && (
            <p class="reason">
              <bdi>{reason}</bdi> {cause && <code>{cause}</code>}
            </p>
          )}
        </li>
      ))}
    </ul>
  );
}

/** The error beside the tolerance, on a scale of powers of ten. */
function ErrorScale({ error, tolerance }: { error: number; tolerance: number }): preact.JSX.Element {
  const decades = Number.isNaN(error) ? DECADES : error > 0 ? Math.log10(error / tolerance) : -DECADES;
  const place = 50 + (50 * Math.min(DECADES, Math.max(-DECADES, decades))) / DECADES;
  return (
    <p class="error-scale small">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="fine" y={3} width={50} height={2} />
        <rect class="wrong" x={50} y={3} width={50} height={2} />
        <rect class="mark" x={Math.min(98.5, place)} y={0} width={1.5} height={8} />
      </svg>
      <span class="number">
        error {short(error)}, tolerance {short(tolerance)}
      </span>
    </p>
  );
}
