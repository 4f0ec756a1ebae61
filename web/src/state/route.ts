/** Which view is shown, and which question is linked to: the fragment of the address has both. */

import { effect, signal } from "@preact/signals";
import { asked } from "./asking.js";
import { jsonOf } from "./draft.js";
import { readFragment, writeFragment } from "./fragment.js";

/** What the address says. */
export const place = signal(readFragment(location.hash));

/** A longer question does not go into the address. */
const LONGEST = 100_000;

/** Goes to a view; the back button returns. */
export function go(view: string): void {
  location.hash = writeFragment({ ...place.value, view });
}

/**
 * Follows the address; after each answer the address has the question, without its inputs.
 *
 * @param onLink takes the question of another link that is opened in this page.
 */
export function follow(onLink: (question: string) => void): void {
  addEventListener("hashchange", () => {
    const { question } = place.value;
    place.value = readFragment(location.hash);
    if (place.value.question !== "" && place.value.question !== question) onLink(place.value.question);
  });
  effect(() => {
    if (asked.value === undefined) return;
    const text = JSON.stringify(jsonOf(asked.value.question, false));
    place.value = { ...place.peek(), question: text.length <= LONGEST ? text : "" };
    history.replaceState(null, "", writeFragment(place.peek()));
  });
}
