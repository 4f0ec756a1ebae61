/** What is wrong with the server, and what is done about it. */

import { Button, TextField } from "../ui/controls.js";
import { useState } from "preact/hooks";
import { Panel } from "../ui/parts.js";
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
      {news.kind === "failed" && <Button text="Try again" onClick={() => void connect()} />}
    </Panel>
  );
}

/** Takes the caller's token, which stays in the memory of this page. */
export function TokenForm({ onDone }: { onDone?: () => void }): preact.JSX.Element {
  const [text, setText] = useState("");
  const use = (given: string): void => {
    onDone?.();
    setText("");
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
      <TextField label="Token" type="password" autocomplete="off" spellcheck={false} value={text} onText={setText} />
      <Button text="Use it" type="submit" class="primary" disabled={text.trim() === ""} />
      {token.value && <Button text="Forget it" class="quiet" onClick={() => use("")} />}
      <p class="muted small">It stays in the memory of this page, and is gone when the page is closed.</p>
    </form>
  );
}
