/** What is wrong with the server, and what is done about it. */

import { useState } from "preact/hooks";
import { Panel } from "./parts.js";
import { connect, enter, standing, token } from "../state/server.js";

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

/** Takes the caller's token, which stays in the memory of this page. */
export function TokenForm({ onDone }: { onDone?: () => void }): preact.JSX.Element {
  const [text, setText] = useState("");
  const use = (given: string): void => {
    setText("");
    onDone?.();
    void enter(given);
  };
  return (
    <form
      class="token"
      onSubmit={(event) => {
        event.preventDefault();
        use(text.trim());
      }}
    >
      <label>
        <span>Token</span>
        <input
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={text}
          onInput={({ currentTarget }) => setText(currentTarget.value)}
        />
      </label>
      <button class="primary" disabled={text.trim() === ""}>
        Use it
      </button>
      {token.value && (
        <button type="button" class="quiet" onClick={() => use("")}>
          Forget it
        </button>
      )}
      <p class="muted small">It stays in the memory of this page, and is gone when the page is closed.</p>
    </form>
  );
}
