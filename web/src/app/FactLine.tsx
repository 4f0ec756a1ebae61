/** Names and numbers in a line. */

import { short } from "../pictures/text.js";

/** Shows those that there are. */
export function FactLine({ facts }: { facts: readonly (readonly [string, number | undefined])[] }): preact.JSX.Element {
  return (
    <dl class="line-of-facts small">
      {facts.map(
        ([name, value]) =>
          value !== undefined && (
            <div key={name} class={name === "not finite" ? "bad" : ""}>
              <dt class="muted">{name}</dt>
              <dd>{name === "zeros" ? `${(100 * value).toFixed(1)} %` : short(value)}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
