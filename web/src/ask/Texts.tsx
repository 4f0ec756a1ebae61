/** Texts for the model to read, each an example. */

import { Button } from "../ui/controls.js";
import { alter, draft } from "../state/asking.js";

/** Takes texts. */
export function Texts(): preact.JSX.Element {
  const given = draft.value.inputs;
  const texts = Array.isArray(given)
    ? (given as readonly unknown[]).map((each) => (typeof each === "string" ? each : ""))
    : [""];
  const put = (changed: readonly string[]): void => {
    alter({ inputs: changed });
  };
  return (
    <div class="texts">
      {texts.map((text, index) => (
        <label key={index}>
          <span class={texts.length > 1 ? "muted small" : "hidden"}>Text {index + 1}</span>
          <textarea
            rows={3}
            value={text}
            placeholder="Type or paste a text"
            onInput={({ currentTarget }) => put(texts.with(index, currentTarget.value))}
          />
        </label>
      ))}
      <div class="actions">
        <Button text="Add a text" class="quiet" onClick={() => put([...texts, " "])} />
        {texts.length > 1 && <Button text="Remove the last" class="quiet" onClick={() => put(texts.slice(0, -1))} />}
      </div>
    </div>
  );
}
