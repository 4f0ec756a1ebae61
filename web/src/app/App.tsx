/** The page: header, navigation, and one view. */

import type { ComponentType } from "preact";
import { useState } from "preact/hooks";
import { ActivationsView } from "../activations/ActivationsView.js";
import { AskView } from "../ask/AskView.js";
import { CostView } from "../cost/CostView.js";
import { EditsView } from "../edits/EditsView.js";
import { EvidenceView } from "../evidence/EvidenceView.js";
import { ExplanationsView } from "../explanations/ExplanationsView.js";
import { GradientsView } from "../gradients/GradientsView.js";
import icon from "../icon.svg";
import { JobsView } from "../jobs/JobsView.js";
import { ModelsView } from "../models/ModelsView.js";
import { asked, choose, draft, model, opening, reopen, row } from "../state/asking.js";
import type { ViewProps } from "../state/exchange.js";
import { writeFragment } from "../state/fragment.js";
import { go, place } from "../state/route.js";
import { connect, enter, models, standing, token } from "../state/server.js";
import { TakeView } from "../take/TakeView.js";
import { Button, Empty, Form, Panel, Problem, Select, TextField } from "../ui/index.js";
import { AnswerStrip } from "./AnswerStrip.js";

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

/** Shows the header. */
function Header({ view }: { view: string }): preact.JSX.Element {
  const [asksToken, setAsksToken] = useState(false);
  const text = token.value ? "Token set" : "Token";
  return (
    <header>
      <div class="top">
        <span class="brand">
          <img src={icon} width={24} height={24} alt="" />
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
      <Select label="Model" of={full ? all : [["", now], ...all]} value={full?.name ?? ""} onChange={open} />
    </div>
  );
}

const TITLES = {
  refused: "The server asks who you are",
  lost: "The server does not answer",
  failed: "The server cannot be used",
};

/** Shows the news, if there are any. */
function ServerNews(): preact.JSX.Element | null {
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
function TokenForm({ onDone }: { onDone?: () => void }): preact.JSX.Element {
  const [text, setText] = useState("");
  const use = (given: string): void => {
    onDone?.();
    setText("");
    void enter(given).then(reopen);
  };
  return (
    <Form kind="token" onDone={() => use(text.trim())}>
      <TextField label="Token" type="password" value={text} onChange={setText} />
      <Button text="Use it" type="submit" class="primary" disabled={text.trim() === ""} />
      {token.value && <Button text="Forget it" class="quiet" onClick={() => use("")} />}
      <p class="muted small">It stays in the memory of this page, and is gone when the page is closed.</p>
    </Form>
  );
}

/** A view, and its name in the address. */
type View = Readonly<{ name: string; title: string; Shown: ComponentType }>;

/** All views. */
const VIEWS: readonly [View, ...View[]] = [
  { name: "models", title: "Model", Shown: ModelsView },
  { name: "ask", title: "Ask", Shown: AskView },
  { name: "activations", title: "Activations", Shown: answered(ActivationsView) },
  { name: "explanations", title: "Explanations", Shown: answered(ExplanationsView) },
  { name: "edits", title: "Edits", Shown: answered(EditsView) },
  { name: "evidence", title: "Evidence", Shown: answered(EvidenceView) },
  { name: "gradients", title: "Gradients", Shown: answered(GradientsView) },
  { name: "cost", title: "Cost", Shown: answered(CostView) },
  { name: "take", title: "Take along", Shown: answered(TakeView) },
  { name: "jobs", title: "Jobs", Shown: JobsView },
];

/** Returns a view of an answer, which says so where there is none yet. */
function answered(Shown: ComponentType<ViewProps>): ComponentType {
  return function Answered(): preact.JSX.Element {
    const answer = asked.value;
    if (!answer) return <Empty title="Nothing has been asked yet." action="Ask something" onAct={() => go("ask")} />;
    return <Shown key={answer.model.model?.name} asked={answer} row={row.value} />;
  };
}
