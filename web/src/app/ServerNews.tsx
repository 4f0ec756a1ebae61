/** What is wrong with the server, and what is done about it. */

import { Panel } from "./Panel.js";
import { TokenForm } from "./TokenForm.js";
import { connect, standing } from "../state/server.js";

/** Shows the news, if there are any. */
export function ServerNews(): preact.JSX.Element | null {
  const news = standing.value;
  if (!("failure" in news)) return null;
  if (news.kind === "refused") {
    return (
      <Panel id="who" title="The server asks who you are" kind="news">
        <p role="alert">
          <bdi>{news.failure.message}</bdi> <code>{news.failure.reason}</code>
        </p>
        <TokenForm />
      </Panel>
    );
  }
  return (
    <section class="panel news" role="alert">
      <h2>{news.kind === "lost" ? "The server does not answer" : "The server cannot be used"}</h2>
      <p>
        <bdi>{news.failure.message}</bdi> <code>{news.failure.reason}</code>
      </p>
      {news.kind === "lost" ? (
        <p class="muted">This page tries again every second, and goes on by itself.</p>
      ) : (
        <button onClick={() => void connect()}>Try again</button>
      )}
    </section>
  );
}
