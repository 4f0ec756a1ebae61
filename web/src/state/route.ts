/** Which view is shown, and which question is linked to: the fragment of the address has both. */

import { effect, signal } from "@preact/signals";
import { asked, draft, model } from "./asking.js";
import { type Draft, textOf } from "./draft.js";
import { readFragment, writeFragment } from "./fragment.js";

/** What the address says. */
export const place = signal(readFragment(location.hash));

/** A longer question does not go into the address. */
const LONGEST = 100_000;

/** Returns the question of a link, without its inputs; "" where it is too long. */
export function linkText(question: Draft): string {
  const text = textOf(question, false);
  return text.length <= LONGEST ? text : "";
}

/** Goes to a view; the back button returns. */
export function go(view: string): void {
  location.hash = writeFragment({ ...place.value, view });
}

/**
 * Follows the address; it has the question of the answer, without its inputs, or that of a link; or the model alone.
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
    if (model.value === undefined) return;
    const { inputs, ...given } = draft.peek();
    const question = asked.value?.question ?? (inputs ? { model: given.model } : given);
    const address = readFragment(location.hash); // has the view that was clicked before its event comes
    if (address.question !== place.peek().question) return; // a link that is opened: its event comes
    place.value = { ...address, question: linkText(question) };
    history.replaceState(null, "", writeFragment(place.peek()));
  });
}
