/** What is wrong with the server, and what is done about it. */

import { Panel } from "./parts.js";
import { TokenForm } from "./TokenForm.js";
import { connect, standing } from "../state/server.js";

const TITLES = {
  refused: "The server asks who you are",
  lost: "The server does not answer",
  failed: "The server cannot be used",
};

/** Shows the news, if there are any. */
export function ServerNews(): preact.JSX.Element | null {
  const news = standing.value;
  if (!("failure" in news)) return null;
  return (
    <Panel id="news" title={TITLES[news.kind]} kind="news">
      <p role="alert">
        <bdi>{news.failure.message}</bdi> <code>{news.failure.reason}</code>
      </p>
      {news.kind === "refused" && <TokenForm />}
      {news.kind === "lost" && <p class="muted">This page tries again every second, and goes on by itself.</p>}
      {news.kind === "failed" && <button onClick={() => void connect()}>Try again</button>}
    </Panel>
  );
}
