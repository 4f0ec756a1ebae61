/** View 5: change what flows through the model, and see at once what comes of it. */

import { useEffect } from "preact/hooks";
import { BeforeAfter } from "./BeforeAfter.js";
import { axesOf, editOf, startOf, type Verb, VERBS, type Wanted } from "./edit.js";
import { type Change, movedText } from "./downstream.js";
import { downstream, follow, tried, wanted } from "./live.js";
import { NumberField, Select, Slider } from "../app/controls.js";
import { Panel } from "../app/parts.js";
import { Bars } from "../pictures/Bars.js";
import { alter } from "../state/asking.js";
import type { ViewProps } from "../state/asked.js";
import { go } from "../state/route.js";
import "./edits.css";

/** Shows the change beside what it does. */
export function EditsView({ asked: { model, reply }, row }: ViewProps): preact.JSX.Element {
  useEffect(follow, []);
  const change = wanted.value ?? startOf(model, Object.keys(reply.captures));
  const now = tried.value;
  const behind = (changes: readonly Change[]): Change[] => changes.filter(({ name }) => name !== change.place);
  return (
    <div class="edits">
      <Panel id="change" title="Change">
        <Fields change={change} model={model} />
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
      <Panel id="comes" title="What comes of it" kind="wide">
        <div aria-live="polite">
          {now ? (
            <>
              <BeforeAfter tried={now} model={model} classes={reply.classes.length > 0} row={row} />
              <p class="muted small">{now.milliseconds.toFixed(0)} ms from the change to the answer</p>
            </>
          ) : (
            <p class="muted">Move the slider.</p>
          )}
        </div>
      </Panel>
      <Panel id="downstream" title="What it did downstream">
        {downstream.value ? (
          <>
            <p>{movedText(behind(downstream.value))}</p>
            <Bars bars={behind(downstream.value)} />
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

/** What is changed: where, which part of it, and how. */
function Fields({ change, model }: { change: Wanted } & Pick<ViewProps["asked"], "model">): preact.JSX.Element {
  const { place, verb, amount, axis, index } = change;
  const { label, least, most } = VERBS[verb];
  const axes = axesOf(model, place);
  const chosen = axes.find((each) => each.axis === axis);
  const set = (part: Partial<Wanted>): void => {
    wanted.value = { ...change, ...part };
  };
  return (
    <div class="change">
      <Select
        label="Place"
        of={model.modules
          .filter(({ name, calls }) => name !== "" && (calls > 0 || name === place))
          .slice(0, 2000)
          .map(({ name, type }) => [name, `${name} (${type})`] as const)}
        value={place}
        onChoose={(each) => set({ place: each, axis: 0, index: 0 })}
      />
      <Select
        label="Part"
        of={[[0, "all of it"], ...axes.map((each) => [each.axis, `one ${each.name}`] as const)]}
        value={axis}
        onChoose={(each) => set({ axis: each, index: 0 })}
      />
      {chosen && (
        <NumberField
          label={`Which ${chosen.name}, of ${chosen.size}`}
          value={index}
          least={0}
          most={chosen.size - 1}
          onChange={(each) => set({ index: each })}
        />
      )}
      <Select
        label="How"
        of={(Object.keys(VERBS) as Verb[]).map((each) => [each, VERBS[each].name] as const)}
        value={verb}
        onChoose={(each) => set({ verb: each, amount: VERBS[each].start })}
      />
      {label && (
        <Slider
          label={`${label} ${amount.toFixed(2)}`}
          {...{ value: amount, least, most, step: 0.01, onChange: (each: number): void => set({ amount: each }) }}
        />
      )}
    </div>
  );
}
