/** Which view is shown: the fragment of the address, which holds the question too. */

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
  location.hash = writeFragment({ view, question: readFragment(location.hash).question });
}

/** Follows the address; after each answer the address has the question, without its inputs. */
export function follow(): void {
  addEventListener("hashchange", () => (place.value = readFragment(location.hash)));
  effect(() => {
    if (asked.value === undefined) return;
    const text = JSON.stringify(jsonOf(asked.value.question, false));
    const question = text.length <= LONGEST ? text : "";
    const fragment = writeFragment({ view: readFragment(location.hash).view, question });
    globalThis.history.replaceState(null, "", fragment);
  });
}

/** Returns the address of a question, with its inputs if they are to be in it. */
export function permalink(view: string, question: string): string {
  return new URL(writeFragment({ view, question }), location.href).href;
}
