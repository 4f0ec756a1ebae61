/** The page: header, navigation, and one view. */

import { AnswerStrip } from "./AnswerStrip.js";
import { Header } from "./Header.js";
import { Problem } from "./Problem.js";
import { ServerNews } from "./ServerNews.js";
import { VIEWS } from "./views.js";
import { SECTIONS } from "../ask/AskView.js";
import { model } from "../state/asking.js";
import { view as current } from "../state/route.js";
import { models, standing } from "../state/server.js";

/** Shows the page. */
export function App(): preact.JSX.Element {
  const view = VIEWS.find(({ name }) => name === current.value) ?? VIEWS[0];
  const opens = standing.value.kind === "connecting" || (model.value === undefined && standing.value.kind === "ready");
  return (
    <>
      <Header view={view?.name ?? ""} />
      <AnswerStrip />
      <main tabIndex={-1}>
        <ServerNews />
        {view?.name !== "ask" && <Problem except={model.value ? SECTIONS : []} />}
        {model.value && view && <view.Shown />}
        {opens && (
          <p class="muted wait" role="status">
            {standing.value.kind === "ready" && models.value.length === 0 ? "No model is served to you." : "Opening…"}
          </p>
        )}
      </main>
    </>
  );
}
