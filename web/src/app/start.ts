/** How the page starts: it follows the address, finds the server, and opens a model. */

import { effect, untracked } from "@preact/signals";
import { ask, choose, failure, model } from "../state/asking.js";
import { type Draft, fromText } from "../state/draft.js";
import { CutawayError } from "@cutaway/client";
import { follow, place } from "../state/route.js";
import { connect, models, standing, watch } from "../state/server.js";
import { applyTheme } from "../state/theme.js";

/** Starts everything that runs as long as the page is open. */
export function start(): void {
  applyTheme();
  let linked = linkedQuestion();
  follow();
  addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void ask();
  });
  effect(() => {
    if (standing.value.kind !== "ready") return;
    const first = models.value[0]?.model;
    untracked(() => {
      if (model.value !== undefined) return;
      const question = linked;
      linked = undefined;
      const name = question?.model ?? first;
      if (name !== undefined) void choose(name, question);
    });
  });
  void connect();
  watch();
}

/** Returns the question that the address holds. It is not asked: a link alone makes nobody's server work. */
function linkedQuestion(): Draft | undefined {
  const { question } = place.value;
  if (question === "") return undefined;
  try {
    return fromText(question);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    failure.value = new CutawayError("MALFORMED_REQUEST", `the link holds no question: ${why}`);
    return undefined;
  }
}
