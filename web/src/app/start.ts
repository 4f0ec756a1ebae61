/** How the page starts: it follows the address, finds the server, and opens a model. */

import { CutawayError } from "@cutaway/client";
import { effect, untracked } from "@preact/signals";
import { choose, failure, history, model, recall } from "../state/asking.js";
import { fromText, jsonOf } from "../state/draft.js";
import { follow, linkText, place } from "../state/route.js";
import { connect, models, note, standing, watch } from "../state/server.js";
import { submit } from "./AnswerStrip.js";

/** Starts everything that runs as long as the page is open. */
export function start(): void {
  follow(openLink);
  addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  effect(() => {
    if (standing.value.kind !== "ready" || models.value.length === 0) return;
    untracked(() => {
      if (model.value === undefined) openLink(place.value.question);
    });
  });
  addEventListener("unhandledrejection", ({ reason }) => (failure.value = note(reason)));
  void connect();
  watch();
}

/**
 * Opens the model and the question of a link, with its answer if it was asked during this visit; for a model alone, a
 * question to start from. It is not asked: a link alone makes nobody's server work.
 */
function openLink(text: string): void {
  const earlier = text === "" ? undefined : history.value.find(({ question }) => linkText(question) === text);
  const first = models.value[0]?.model ?? "";
  try {
    const draft = text === "" ? { model: first } : fromText(text);
    if (earlier) recall(earlier);
    else void choose(draft.model || first, Object.keys(jsonOf(draft, true)).length > 1 ? draft : undefined);
  } catch (error) {
    if (model.value === undefined) void choose(first);
    const why = error instanceof Error ? error.message : String(error);
    failure.value = new CutawayError("MALFORMED_REQUEST", `the link holds no question: ${why}`);
  }
}
