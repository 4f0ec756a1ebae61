/** View 5: change what flows through the model, and see at once what comes of it. */

import { Panel } from "../app/Panel.js";
import { useEffect } from "preact/hooks";
import { BeforeAfter } from "./BeforeAfter.js";
import { axesOf, editOf, type Verb, VERBS, type Wanted } from "./edit.js";
import { type Change, movedText } from "./downstream.js";
import { downstream, follow, tried, wanted } from "./live.js";
import { Select } from "../app/Select.js";
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
  const behind = (changes: readonly Change[]): Change[] => changes.filter(({ place }) => place !== change.place);
  return (
    <div class="edits">
      <Panel id="change" title="Change">
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
      </Panel>
      <section class="panel wide" aria-labelledby="comes" aria-live="polite">
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
      <Panel id="downstream" title="What it did downstream">
        {downstream.value ? (
          <>
            <p>{movedText(behind(downstream.value))}</p>
            <Bars bars={behind(downstream.value).map(({ place, relative }) => ({ name: place, value: relative }))} />
            <p class="muted small">
              The norm of the difference, by that of the layer without the change, over all examples.
            </p>
          </>
        ) : (
          <p class="muted">{now ? "Asking…" : "Nothing was changed yet."}</p>
        )}
      </Panel>
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
        <Select
          of={model.modules
            .filter(({ name, calls }) => name !== "" && (calls > 0 || name === place))
            .slice(0, 2000)
            .map(({ name, type }) => [name, `${name} (${type})`] as const)}
          value={place}
          onChoose={(each) => set({ place: each, axis: 0, index: 0 })}
        />
      </label>
      <label>
        Part
        <Select
          of={[[0, "all of it"], ...axes.map((each) => [each.axis, `one ${each.name}`] as const)]}
          value={axis}
          onChoose={(each) => set({ axis: each, index: 0 })}
        />
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
        <Select
          of={(Object.keys(VERBS) as Verb[]).map((each) => [each, VERBS[each].name] as const)}
          value={verb}
          onChoose={(each) => set({ verb: each, amount: VERBS[each].start })}
        />
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
