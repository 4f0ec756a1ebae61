/** The top of the page: which model, which view, whose token. */

import { useState } from "preact/hooks";
import { Button, Select } from "../ui/controls.js";
import { TokenForm } from "./ServerNews.js";
import { VIEWS } from "./views.js";
import { choose, draft, opening } from "../state/asking.js";
import { writeFragment } from "../state/fragment.js";
import { place } from "../state/route.js";
import { models, token } from "../state/server.js";

/** Shows the header. */
export function Header({ view }: { view: string }): preact.JSX.Element {
  const [asksToken, setAsksToken] = useState(false);
  const text = token.value ? "Token set" : "Token";
  return (
    <header>
      <div class="top">
        <span class="brand">
          <svg viewBox="0 0 24 24" width={24} height={24} aria-hidden="true">
            <path class="left" d="M3 7l9 5v10l-9-5z" />
            <path class="lid" d="M3 7l9-5 9 5-9 5z" />
            <path class="edge" d="M21 7v10l-9 5" />
            <path class="inside" d="M14.5 14.5l4-2.2v4l-4 2.2z" />
          </svg>
          Cutaway
        </span>
        <ModelChooser />
        <span class="grow" />
        <Button text={text} class="quiet" aria-expanded={asksToken} onClick={() => setAsksToken(!asksToken)} />
      </div>
      {asksToken && <TokenForm onDone={() => setAsksToken(false)} />}
      <nav aria-label="Views">
        {VIEWS.map(({ name, title }) => (
          <a key={name} href={writeFragment({ ...place.value, view: name })} aria-current={name === view && "page"}>
            {title}
          </a>
        ))}
      </nav>
    </header>
  );
}

function ModelChooser(): preact.JSX.Element {
  const now = opening.value ?? draft.value.model;
  const full = models.value.findLast(({ name, model }) => `models/${now}` === name || now === model);
  const all = models.value.map(({ name, model, version }) => [name, `${model} ${version}`] as const);
  const open = (name: string): void => void choose(name.replace(/^models\//, ""));
  return (
    <div class="chooser">
      <Select label="Model" of={full ? all : [["", now], ...all]} value={full?.name ?? ""} onChoose={open} />
    </div>
  );
}
