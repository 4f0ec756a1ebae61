/** A verdict as a sign and a word. */

import type { Shown } from "./verdicts.js";

/** Shows the verdict. */
export function VerdictBadge({ shown }: { shown: Shown }): preact.JSX.Element {
  return (
    <span class={`verdict ${shown.tone}`}>
      <span aria-hidden="true">{shown.sign}</span> {shown.word}
    </span>
  );
}
