/** Verdicts in words and signs: never by colour alone. */

import { type Attribution, Verdict } from "@cutaway/client";
import { Cause, type Check } from "@cutaway/contract/check_pb";

/** How a verdict is shown. */
export interface Shown {
  readonly word: string;
  readonly sign: string;
  readonly tone: "good" | "bad" | "unsure" | "muted";
}

const SHOWN: Readonly<Record<Verdict, Shown>> = {
  [Verdict.AGREES]: { word: "agrees with the raw hooks", sign: "✓", tone: "good" },
  [Verdict.DISAGREES]: { word: "disagrees with the raw hooks", sign: "✗", tone: "bad" },
  [Verdict.INCONCLUSIVE]: { word: "inconclusive", sign: "?", tone: "unsure" },
  [Verdict.NOT_APPLICABLE]: { word: "no check applies", sign: "–", tone: "muted" },
  [Verdict.UNSPECIFIED]: { word: "not checked", sign: "–", tone: "muted" },
};

/** A comparison with raw hooks, for one example. */
export interface Compared {
  readonly check: Check;
  readonly verdict: Verdict;
  readonly error: number;
  readonly reason: string;
  readonly cause: string;
}

/** Returns what the checks say of one example. */
export function comparedIn({ checks }: Attribution, row: number): Compared[] {
  return checks.map((check) => {
    const { maxRelativeError: error, verdict, reason, cause } = check.rows[row] ?? check;
    return {
      check,
      verdict,
      error,
      reason,
      cause: [Cause.UNSPECIFIED, Cause.UNKNOWN].includes(cause) ? "" : Cause[cause],
    };
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

/** Returns how a verdict is shown. */
export function shownAs(verdict: Verdict): Shown {
  return SHOWN[verdict];
}

interface Props {
  readonly shown: Shown;
  /** Whether what it was compared with stands beside it. */
  readonly brief?: boolean;
}

/** Shows the verdict. */
export function VerdictBadge({ shown: { tone, sign, word }, brief = false }: Props): preact.JSX.Element {
  return (
    <span class={`verdict ${tone}`}>
      <span aria-hidden="true">{sign}</span> {brief ? word.replace(" with the raw hooks", "") : word}
    </span>
  );
}
