/** View 5: change what flows through the model, and see at once what comes of it. */

import { useEffect, useMemo } from "preact/hooks";
import { leavesOf } from "../models/places.js";
import { Bars } from "../pictures/Bars.js";
import { alter, failure, go, type ViewProps } from "../state/index.js";
import { Button, NumberField, Panel, Select, short, SlidingNumber } from "../ui/index.js";
import { Attacking } from "./Attacking.js";
import { BeforeAfter } from "./BeforeAfter.js";
import { Sweeping } from "./Sweeping.js";
import { movedText } from "./downstream.js";
import { axesOf, type EditDraft, editOf, placesOf, placeText, unchanged, type Verb, VERBS } from "./edit.js";
import { downstream, follow, tried, wanted } from "./live.js";
import "./edits.css";

/** Shows the change beside what it does; each part is drawn anew for itself, since a slider moves fast. */
export function EditsView({ asked, row }: ViewProps): preact.JSX.Element {
  useEffect(follow, []);
  return (
    <div class="edits">
      <Panel id="change" title="Change">
        <Change asked={asked} />
      </Panel>
      <Panel id="comes" title="What comes of it">
        <Outcome asked={asked} row={row} />
      </Panel>
      <Panel id="downstream" title="What it did downstream">
        <Downstream asked={asked} />
      </Panel>
      <Panel id="carries" title="What carries the answer?" kind="whole">
        <Sweeping {...{ asked, row }} />
      </Panel>
      <Panel id="attacks" title="Which small change changes the answer?" kind="whole">
        <Attacking {...{ asked, row }} />
      </Panel>
    </div>
  );
}

function Outcome({ asked, row }: ViewProps): preact.JSX.Element {
  const now = tried.value?.asked === asked ? tried.value : undefined;
  return (
    <div aria-live="polite">
      {!now && <p class="muted">Move the slider.</p>}
      {now && <BeforeAfter tried={now} asked={asked} row={row} />}
      {now && <p class="muted small">{now.milliseconds.toFixed(0)} ms from the change to the answer</p>}
    </div>
  );
}

function Downstream({ asked }: Pick<ViewProps, "asked">): preact.JSX.Element {
  if (downstream.value === undefined || tried.value?.asked !== asked) {
    const waiting = failure.value ? "The layers cannot be compared." : "Asking…";
    return <p class="muted">{tried.value ? waiting : "Nothing was changed yet."}</p>;
  }
  const { changes, fresh } = downstream.value;
  return (
    <div class={fresh ? "" : "stale"} aria-busy={!fresh}>
      <p>{movedText(changes)}</p>
      <Bars bars={changes} textOf={(value) => `${short(100 * value)} %`} paths />
      <p class="muted small">
        The norm of the difference, by that of the layer without the change, over all examples. {changes.length} layers
        are shown, the model has {leavesOf(asked.model).length}.
      </p>
    </div>
  );
}

const WAYS = (Object.keys(VERBS) as Verb[]).map((each) => [each, VERBS[each].name] as const);

/** What is changed: where, which part of it, and how. */
function Change({ asked }: Pick<ViewProps, "asked">): preact.JSX.Element {
  const others = useMemo(() => placesOf(asked), [asked]);
  const change = wanted.value ?? unchanged(others[0] ?? { address: "" });
  const { place, verb, amount, at } = change;
  const { label, least, most } = VERBS[verb];
  const places = new Map([place, ...others].map((each) => [placeText(each), each]));
  const axes = useMemo(() => axesOf(asked, place), [asked, place]);
  const set = (part: Partial<EditDraft>): void => {
    wanted.value = { ...change, ...part };
  };
  const move = (chosen: string): void => set({ place: places.get(chosen) ?? place, at: [] });
  const keep = (): void => {
    alter({ edits: [...(asked.question.edits ?? []), editOf(change)], compare: true });
    go("ask");
  };
  return (
    <div class="change">
      <Select label="Place" of={[...places.keys()]} value={placeText(place)} onChange={move} />
      {axes.map(({ name, size }, axis) => (
        <NumberField
          key={`${placeText(place)} ${axis}`}
          label={`Which ${name}, from 0${size === undefined ? "" : ` to ${size - 1}`}`}
          {...{ value: at[axis], least: 0, most: (size ?? Infinity) - 1, whole: true, empty: "all" }}
          onChange={(index?: number) => set({ at: axes.map((_, each) => (each === axis ? index : at[each])) })}
        />
      ))}
      <Select label="How" of={WAYS} value={verb} onChange={(each) => set({ verb: each, amount: VERBS[each].start })} />
      {label && (
        <SlidingNumber
          {...{ label, value: amount, least, most, step: 0.01 }}
          onChange={(each) => set({ amount: each })}
        />
      )}
      <div class="tools">
        <Button text="Back to the start" onClick={() => set({ amount: VERBS[verb].start })} />
        <Button text="Keep it in the question" onClick={keep} />
      </div>
    </div>
  );
}
