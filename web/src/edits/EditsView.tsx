/** View 5: change what flows through the model, and see at once what comes of it. */

import { useEffect } from "preact/hooks";
import { BeforeAfter } from "./BeforeAfter.js";
import { axesOf, editOf, type Verb, VERBS, type Wanted } from "./edit.js";
import { downstream, follow, tried, wanted } from "./live.js";
import { Bars } from "../pictures/Bars.js";
import { alter } from "../state/asking.js";
import type { ViewProps } from "../state/asked.js";
import { go } from "../state/route.js";
import "./edits.css";

/** Shows the change beside what it does. */
export function EditsView({ asked, row }: ViewProps): preact.JSX.Element {
  const { model, reply } = asked;
  useEffect(follow, []);
  const change =
    wanted.value ??
    startOf(
      Object.keys(reply.captures),
      model.modules.map(({ name }) => name),
    );
  const now = tried.value;
  return (
    <div class="edits">
      <section class="panel" aria-labelledby="change">
        <h2 id="change">Change</h2>
        <Change change={change} {...{ asked }} />
        <div class="tools">
          <button onClick={() => (wanted.value = { ...change, amount: VERBS[change.verb].start })}>
            Back to the start
          </button>
          <button
            onClick={() => {
              alter({ edits: [editOf(change)], compare: true });
              go("ask");
            }}
          >
            Keep it in the question
          </button>
        </div>
      </section>
      <section class="panel" aria-labelledby="comes" aria-live="polite">
        <h2 id="comes">What comes of it</h2>
        {now ? (
          <>
            <BeforeAfter tried={now} model={model} classes={reply.classes.length > 0} row={row} />
            <p class="muted small">{now.milliseconds.toFixed(0)} ms from the change to the answer</p>
          </>
        ) : (
          <p class="muted">Move the slider.</p>
        )}
      </section>
      <section class="panel" aria-labelledby="downstream">
        <h2 id="downstream">What it did downstream</h2>
        {downstream.value ? (
          <>
            <Bars bars={downstream.value.map(({ place, relative }) => ({ name: place, value: relative }))} />
            <p class="muted small">
              The norm of the difference, by that of the layer without the change, over all examples.
            </p>
          </>
        ) : (
          <p class="muted">{now ? "Asking…" : "Nothing was changed yet."}</p>
        )}
      </section>
    </div>
  );
}

function startOf(captured: readonly string[], modules: readonly string[]): Wanted {
  const place = captured.find((key) => key.endsWith("@output"))?.replace("@output", "") ?? modules[1] ?? "";
  return { place, verb: "scale", amount: VERBS.scale.start, axis: 0, index: 0 };
}

function Change({ change, asked: { model } }: { change: Wanted } & Pick<ViewProps, "asked">): preact.JSX.Element {
  const { place, verb, amount, axis, index } = change;
  const { label, least, most } = VERBS[verb];
  const axes = axesOf(model, place);
  const chosen = axes.find((each) => each.axis === axis);
  const set = (part: Partial<Wanted>): void => {
    wanted.value = { ...change, ...part };
  };
  return (
    <div class="change">
      <label>
        Place
        <select value={place} onChange={({ currentTarget }) => set({ place: currentTarget.value, axis: 0, index: 0 })}>
          {model.modules
            .filter(({ name, calls }) => name !== "" && (calls > 0 || name === place))
            .slice(0, 2000)
            .map(({ name, type }) => (
              <option key={name} value={name}>
                {name} ({type})
              </option>
            ))}
        </select>
      </label>
      <label>
        Part
        <select value={axis} onChange={({ currentTarget }) => set({ axis: Number(currentTarget.value), index: 0 })}>
          <option value={0}>all of it</option>
          {axes.map((each) => (
            <option key={each.axis} value={each.axis}>
              one {each.name}
            </option>
          ))}
        </select>
      </label>
      {chosen && (
        <label>
          Which {chosen.name}, of {chosen.size}
          <input
            type="number"
            min={0}
            max={chosen.size - 1}
            value={index}
            onInput={({ currentTarget }) => {
              const wish = Math.trunc(currentTarget.valueAsNumber);
              if (wish >= 0 && wish < chosen.size) set({ index: wish });
            }}
          />
        </label>
      )}
      <label>
        How
        <select
          value={verb}
          onChange={({ currentTarget }) => {
            const next = currentTarget.value as Verb;
            set({ verb: next, amount: VERBS[next].start });
          }}
        >
          {(Object.keys(VERBS) as Verb[]).map((each) => (
            <option key={each} value={each}>
              {VERBS[each].name}
            </option>
          ))}
        </select>
      </label>
      {label && (
        <label class="slider">
          {label} <span class="number">{amount.toFixed(2)}</span>
          <input
            type="range"
            min={least}
            max={most}
            step={0.01}
            value={amount}
            onInput={({ currentTarget }) => set({ amount: currentTarget.valueAsNumber })}
          />
        </label>
      )}
    </div>
  );
}
