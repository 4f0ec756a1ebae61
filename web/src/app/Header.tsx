/** The top of the page: which model, which view, which theme, whose token. */

import { useState } from "preact/hooks";
import { Choice } from "./Choice.js";
import { TokenForm } from "./TokenForm.js";
import { VIEWS } from "./views.js";
import { choose, draft } from "../state/asking.js";
import { readFragment, writeFragment } from "../state/fragment.js";
import { models, token } from "../state/server.js";
import { THEMES, theme } from "../state/theme.js";

/** Shows the header. */
export function Header({ view }: { view: string }): preact.JSX.Element {
  const [asksToken, setAsksToken] = useState(false);
  const { question } = readFragment(location.hash);
  return (
    <header>
      <div class="bar">
        <span class="brand">
          <svg viewBox="0 0 24 24" width={22} height={22} aria-hidden="true">
            <path class="whole" d="M12 2 21 7v10l-9 5-9-5V7z" />
            <path class="cut" d="M12 12V2l9 5v10z" />
            <path class="inside" d="M12 12 21 7M12 12v10M12 12 3 7" />
          </svg>
          Cutaway
        </span>
        <ModelChooser />
        <span class="grow" />
        <Choice
          label="Theme"
          of={THEMES}
          names={{ system: "System", light: "Light", dark: "Dark" }}
          value={theme.value}
          onChoose={(each) => (theme.value = each)}
        />
        <button
          class="quiet"
          aria-expanded={asksToken}
          onClick={() => {
            setAsksToken(!asksToken);
          }}
        >
          {token.value ? "Token set" : "Token"}
        </button>
      </div>
      {asksToken && (
        <TokenForm
          onDone={() => {
            setAsksToken(false);
          }}
        />
      )}
      <nav aria-label="Views">
        {VIEWS.map(({ name, title }) => (
          <a
            key={name}
            href={writeFragment({ view: name, question })}
            aria-current={name === view ? "page" : undefined}
          >
            {title}
          </a>
        ))}
      </nav>
    </header>
  );
}

function ModelChooser(): preact.JSX.Element {
  const now = draft.value.model;
  const full = models.value.find(({ name, model }) => `models/${now}` === name || now === model);
  return (
    <label class="chooser">
      <span class="hidden">Model</span>
      <select
        value={full?.name ?? ""}
        disabled={models.value.length === 0}
        onChange={({ currentTarget }) => void choose(currentTarget.value.replace(/^models\//, ""))}
      >
        {models.value.map(({ name, model, version }) => (
          <option key={name} value={name}>
            {model} {version}
          </option>
        ))}
        {!full && <option value="">{now}</option>}
      </select>
    </label>
  );
}
