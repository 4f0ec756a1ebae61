/** Verdicts in words and signs: never by colour alone. */

import { type Attribution, Verdict } from "@cutaway/client";
import { Cause, type Check } from "@cutaway/contract/check_pb";

/** A word, a sign, and how good it is. */
const SHOWN: Readonly<Record<Verdict, readonly [string, string, "good" | "bad" | "unsure" | "muted"]>> = {
  [Verdict.AGREES]: ["agrees with the raw hooks", "✓", "good"],
  [Verdict.DISAGREES]: ["disagrees with the raw hooks", "✗", "bad"],
  [Verdict.INCONCLUSIVE]: ["inconclusive", "?", "unsure"],
  [Verdict.NOT_APPLICABLE]: ["no check applies", "–", "muted"],
  [Verdict.UNSPECIFIED]: ["not checked", "–", "muted"],
};

/** A comparison with raw hooks, for one example. */
export type Compared = Readonly<{ check: Check; verdict: Verdict; error: number; reason: string; cause: string }>;

/** Returns what the checks say of one example. */
export function comparedIn({ checks }: Readonly<{ checks: readonly Check[] }>, row: number): Compared[] {
  return checks.map((check) => {
    const { maxRelativeError: error, verdict, reason, cause } = check.rows[row] ?? check;
    const known = cause !== Cause.UNSPECIFIED && cause !== Cause.UNKNOWN;
    return { check, verdict, error, reason, cause: known ? Cause[cause] : "" };
  });
}

const WORST_FIRST = [Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE];

/** Returns the worst of some verdicts. */
export function worstOf(verdicts: readonly Verdict[]): Verdict {
  return WORST_FIRST.find((each) => verdicts.includes(each)) ?? Verdict.UNSPECIFIED;
}

/** Returns the worst verdict on an explanation of one example. */
export function verdictOn(attribution: Attribution, row: number): Verdict {
  return worstOf(comparedIn(attribution, row).map(({ verdict }) => verdict));
}

/** Returns the verdict in words; in brief where they stand beside what it was compared with. */
export function verdictText(verdict: Verdict, brief = false): string {
  return brief ? SHOWN[verdict][0].replace(" with the raw hooks", "") : SHOWN[verdict][0];
}

/** Shows the verdict; in brief where what it was compared with stands beside it. */
export function VerdictBadge({ verdict, brief = false }: { verdict: Verdict; brief?: boolean }): preact.JSX.Element {
  const [, sign, tone] = SHOWN[verdict];
  return (
    <span class={`verdict ${tone}`}>
      <span aria-hidden="true">{sign}</span> {verdictText(verdict, brief)}
    </span>
  );
}
