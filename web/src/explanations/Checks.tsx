/** What was compared, how far it was apart, and what a person can do about it. */

import { Verdict } from "@cutaway/client";
import { type Compared, VerdictBadge } from "../ui/verdicts.js";
import { short } from "../ui/text.js";

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
