/** The address of the page behind `#`: which view, and which question. It never leaves the browser. */

/** What an address says. */
export interface Route {
  /** The name of a view: `models`. */
  readonly view: string;
  /** The question in the contract's JSON, or "". */
  readonly question: string;
}

/** Returns what a fragment says: `#/ask?question=%7B...%7D`. */
export function readFragment(fragment: string): Route {
  const [path = "", query = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  return { view: path, question: new URLSearchParams(query).get("question") ?? "" };
}

/** Returns the fragment that says this. */
export function writeFragment({ view, question }: Route): string {
  return `#/${view}${question && `?question=${encodeURIComponent(question)}`}`;
}
