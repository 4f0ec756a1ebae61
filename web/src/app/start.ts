/** How the page starts: it follows the address, finds the server, and opens a model. */

import { effect, untracked } from "@preact/signals";
import { CutawayError } from "@cutaway/client";
import { ask, choose, failure, model } from "../state/asking.js";
import { type Draft, fromText } from "../state/draft.js";
import { follow, question } from "../state/route.js";
import { connect, models, standing, watch } from "../state/server.js";
import { applyTheme } from "../state/theme.js";

/** Starts everything that runs as long as the page is open. */
export function start(): void {
  applyTheme();
  let linked = draftIn(question.value);
  follow((text) => {
    const draft = draftIn(text);
    if (draft) void choose(draft.model, draft);
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void ask();
  });
  effect(() => {
    if (standing.value.kind !== "ready" || models.value.length === 0) return;
    untracked(() => {
      if (model.value !== undefined) return;
      const draft = linked;
      linked = undefined;
      void choose(draft?.model ?? models.value[0]?.model ?? "", draft);
    });
  });
  void connect();
  watch();
}

/** Returns the question in a link. It is not asked: a link alone makes nobody's server work. */
function draftIn(text: string): Draft | undefined {
  if (text === "") return undefined;
  try {
    return fromText(text);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    failure.value = new CutawayError("MALFORMED_REQUEST", `the link holds no question: ${why}`);
    return undefined;
  }
}
