/** View 5: change what flows through the model, and see at once what comes of it. */

import { useEffect } from "preact/hooks";
import { BeforeAfter } from "./BeforeAfter.js";
import { axesOf, editOf, placesOf, placeText, startOf, type Verb, VERBS, type Wanted } from "./edit.js";
import { type Change, movedText } from "./downstream.js";
import { downstream, follow, tried, wanted } from "./live.js";
import { NumberField, Select, Slider } from "../app/controls.js";
import { Panel } from "../app/parts.js";
import { Bars } from "../pictures/Bars.js";
import { short } from "../pictures/text.js";
import { leavesOf } from "../models/places.js";
import { alter } from "../state/asking.js";
import type { ViewProps } from "../state/asked.js";
import { go } from "../state/route.js";
import "./edits.css";

/** Shows the change beside what it does. */
export function EditsView({ asked, row }: ViewProps): preact.JSX.Element {
  useEffect(follow, []);
  const change = wanted.value ?? startOf(asked);
  const now = tried.value;
  const behind = (changes: readonly Change[]): Change[] => changes.filter(({ name }) => name !== change.place.address);
  return (
    <div class="edits">
      <Panel id="change" title="Change">
        <Fields change={change} asked={asked} />
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
              <BeforeAfter tried={now} asked={asked} row={row} />
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
            <Bars bars={behind(downstream.value)} textOf={(value) => `${short(100 * value)} %`} paths />
            <p class="muted small">
              The norm of the difference, by that of the layer without the change, over all examples; of{" "}
              {downstream.value.length} layers out of {leavesOf(asked.model).length}.
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
function Fields({ change, asked }: { change: Wanted } & Pick<ViewProps, "asked">): preact.JSX.Element {
  const { place, verb, amount, at } = change;
  const { label, least, most } = VERBS[verb];
  const places = [place, ...placesOf(asked).filter((each) => placeText(each) !== placeText(place))];
  const axes = axesOf(asked, place);
  const set = (part: Partial<Wanted>): void => {
    wanted.value = { ...change, ...part };
  };
  return (
    <div class="change">
      <Select
        label="Place"
        of={places.map((each) => [placeText(each), placeText(each)] as const)}
        value={placeText(place)}
        onChoose={(chosen) => set({ place: places.find((each) => placeText(each) === chosen) ?? place, at: [] })}
      />
      {axes.map(({ name, size }, axis) => (
        <NumberField
          key={`${placeText(place)} ${axis}`}
          label={`Which ${name}, from 0${size === undefined ? "" : ` to ${size - 1}`}`}
          value={at[axis]}
          least={0}
          most={(size ?? Infinity) - 1}
          whole
          empty="all"
          onChange={(index) => set({ at: axes.map((_, each) => (each === axis ? index : at[each])) })}
        />
      ))}
      <Select
        label="How"
        of={(Object.keys(VERBS) as Verb[]).map((each) => [each, VERBS[each].name] as const)}
        value={verb}
        onChoose={(each) => set({ verb: each, amount: VERBS[each].start })}
      />
      {label && (
        <>
          <NumberField label={label} value={amount} onChange={(each = 0) => set({ amount: each })} />
          <Slider
            label={<span class="hidden">{label}</span>}
            {...{ value: amount, least, most, step: 0.01, onChange: (each: number): void => set({ amount: each }) }}
          />
        </>
      )}
    </div>
  );
}
