/** Which view is shown, and which question is linked to: the fragment of the address has both. */

import { effect, signal } from "@preact/signals";
import { asked } from "./asking.js";
import { jsonOf } from "./draft.js";
import { readFragment, writeFragment } from "./fragment.js";

const begin = readFragment(location.hash);

/** The name of the view that is shown. */
export const view = signal(begin.view);

/** The question in the address, in the contract's JSON; "" if there is none. */
export const question = signal(begin.question);

/** A longer question does not go into the address. */
const LONGEST = 100_000;

/** Goes to a view; the back button returns. */
export function go(name: string): void {
  location.hash = writeFragment({ view: name, question: question.value });
}

/**
 * Follows the address; after each answer the address has the question, without its inputs.
 *
 * @param onLink takes the question of another link that is opened in this page.
 */
export function follow(onLink: (question: string) => void): void {
  addEventListener("hashchange", () => {
    const place = readFragment(location.hash);
    view.value = place.view;
    if (place.question !== "" && place.question !== question.value) onLink(place.question);
    question.value = place.question;
  });
  effect(() => {
    if (asked.value === undefined) return;
    const text = JSON.stringify(jsonOf(asked.value.question, false));
    const short = text.length <= LONGEST ? text : "";
    question.value = short;
    globalThis.history.replaceState(null, "", writeFragment({ view: view.peek(), question: short }));
  });
}

/** Returns the address of a question. */
export function permalink(name: string, text: string): string {
  return new URL(writeFragment({ view: name, question: text }), location.href).href;
}
