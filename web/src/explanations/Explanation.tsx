/** One explanation: what it shows, whether it can be trusted, and its sums. */

import { Better, fromMessage, type Tensor, Verdict } from "@cutaway/client";
import type { Check } from "@cutaway/contract/check_pb";
import { statisticsOf } from "../measures/index.js";
import { askedParts, contrastOf, elementOf, exampleOf, go, targetText } from "../state/index.js";
import { Button, comparedIn, FactLine, Failure, short, Table, VerdictBadge, verdictOn } from "../ui/index.js";
import { Baseline } from "./Baseline.js";
import { WithReference } from "./Reference.js";
import type { ExplanationProps } from "./Values.js";
import { pointsOf } from "../pictures/Series.js";

/** Shows it, for one example. */
export function Explanation({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { method, layer, message } = attribution;
  const { attributions } = askedParts(asked.question);
  const all = asked.reply.attributions; // one for each of several targets, whose methods cannot be told then
  const smoothed = attributions.length === all.length && attributions[all.indexOf(attribution)]?.noiseTunnel;
  const target = message.targets[row];
  const contrasts = contrastOf(askedParts(asked.question).target) !== undefined;
  const explained = target === undefined ? undefined : elementOf(asked, Number(target));
  return (
    <article class={`panel explanation ${message.references.length ? "whole" : ""}`}>
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
      {contrasts && <p class="muted small">of {targetText(asked, row)}: why the one, and not the other?</p>}
      {message.error ? (
        <Failure error={message.error}>
          <Button text="Change it under Ask" onClick={() => go("ask")} />
        </Failure>
      ) : asked.reply.message.explainedRows[row] === false ? (
        <p class="muted">This example does not meet the question’s condition, and was not explained.</p>
      ) : (
        <>
          <WithReference {...{ asked, row, attribution }} />
          <Baseline {...{ asked, row, attribution }} />
          <Sums {...{ asked, row, attribution }} />
          <Quality {...{ asked, row, attribution }} />
          <Checks checks={attribution.checks} row={row} />
        </>
      )}
    </article>
  );
}

/** The sum of the values beside the change of the target, where the method promises that they are equal. */
function Sums({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { valueAtInput, valueAtBaseline, convergenceDelta } = attribution.message;
  const sumOf = (tensor: Tensor): number => statisticsOf(exampleOf(asked, tensor, row).values).sum;
  const sum = Object.values(attribution.values).reduce((total, each) => total + sumOf(each), 0);
  return (
    <FactLine
      facts={[
        ["sum", sum],
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
export function Checks({ checks, row }: Readonly<{ checks: readonly Check[]; row: number }>): preact.JSX.Element {
  const compared = comparedIn({ checks }, row);
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

const WORDS: Partial<Record<Better, string>> = {
  [Better.HIGHER]: "higher is better",
  [Better.LOWER]: "lower is better",
  [Better.ZERO]: "near 0 is better",
};

/** Shows the metrics of one example, if the question has any. */
export function Quality({ asked, row, attribution }: ExplanationProps): preact.JSX.Element | null {
  const { metrics } = attribution.message;
  if (metrics.length === 0) return null;
  const compared = metrics.filter(({ random }) => Number.isFinite(random[row]));
  const won = compared.filter(({ values, random, better }) => {
    const above = Number(values[row]) - Number(random[row]);
    return better === Better.LOWER ? above < 0 : above > 0;
  });
  return (
    <>
      <Table
        kind="quality"
        heads={["Metric", "Value", "Random"]}
        rows={metrics.map(({ name, values, random, better, curve }) => [
          <>
            {name.replaceAll("_", " ")}
            <p class="muted small">{WORDS[better]}</p>
            {curve && <Curve values={exampleOf(asked, fromMessage(curve), row).values} />}
          </>,
          values[row],
          random[row],
        ])}
      />
      {compared.length > 0 && (
        <p class="muted small">
          Better than an attribution of random numbers in {won.length} of {compared.length} metrics.
        </p>
      )}
    </>
  );
}

/** A line through the values, from the first step to the last. */
function Curve({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const all = Array.from(values);
  const label = `from ${short(all[0] ?? NaN)} to ${short(all.at(-1) ?? NaN)}`;
  return (
    <svg class="curve" viewBox={`0 0 ${all.length - 1} 100`} preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={pointsOf(all)} />
    </svg>
  );
}
