/** The page: header, navigation, and one view. */

import { AnswerStrip } from "./AnswerStrip.js";
import { Header } from "./Header.js";
import { Problem } from "../ui/problems.js";
import { ServerNews } from "./ServerNews.js";
import { VIEWS } from "./views.js";
import { model, opening } from "../state/asking.js";
import { place } from "../state/route.js";
import { models, standing } from "../state/server.js";

/** Shows the page. */
export function App(): preact.JSX.Element {
  const view = VIEWS.find(({ name }) => name === place.value.view) ?? VIEWS[0];
  const opens = standing.value.kind === "connecting" || opening.value !== undefined;
  return (
    <>
      <Header view={view.name} />
      <AnswerStrip />
      <main tabIndex={-1} aria-busy={opens}>
        {opens && !model.value && <p role="status">Opening {opening.value}…</p>}
        <ServerNews />
        {(view.name !== "ask" || !model.value) && <Problem />}
        {model.value && <view.Shown />}
        {!model.value && standing.value.kind === "ready" && !opens && models.value.length === 0 && (
          <p class="muted">No model is served to you.</p>
        )}
      </main>
    </>
  );
}
