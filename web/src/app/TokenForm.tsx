/** Asks for the caller's token, which stays in the memory of this page. */

import { useState } from "preact/hooks";
import { enter, token } from "../state/server.js";

/** Takes a token. */
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
