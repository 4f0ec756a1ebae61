/** View 3: what the model has inside, for one example. */

import { HookPoint } from "@cutaway/client";
import { useMemo, useState } from "preact/hooks";
import { FLOATING } from "../ask/ways.js";
import { Measured } from "../edits/Sweeping.js";
import { layoutOf } from "../measures/index.js";
import { capturing, leavesOf, requestAt, spread } from "../models/places.js";
import { ask, draft, exampleOf, targetText, type ViewProps, wholeOutputs } from "../state/index.js";
import { Button, Empty, Panel, shapeText, Statistics } from "../ui/index.js";
import { Channels, strongestText } from "./Channels.js";
import { Sequence } from "./Sequence.js";
import { axesAt, canChange, gradientAt } from "./places.js";
import "./activations.css";

/** How many layers, modules that ran and have none inside, are captured at once. */
const MOST_LAYERS = 64;

/** Shows one capture, and lets a person choose which. */
export function ActivationsView({ asked, row }: ViewProps): preact.JSX.Element {
  const { captured } = asked.reply;
  const [wanted, setWanted] = useState("");
  const [sought, setSought] = useState(0);
  const one =
    captured.find(({ name }) => name === wanted) ??
    captured.find(({ tensor }) => tensor.shape.length > 3) ??
    captured[0];
  const strongest = useMemo(() => captured.map((each) => strongestText(asked, each, row)), [asked, captured, row]);
  const layers = leavesOf(asked.model).map(({ name }) => name);
  const outputs = wholeOutputs(asked);
  const known = captured.filter(({ point }) => point === HookPoint.OUTPUT).map(({ module }) => module);
  const further = spread(layers, MOST_LAYERS).filter((name) => !known.includes(name));
  const more = (point: HookPoint, modules: readonly string[]): void =>
    void ask(capturing(draft.value, ...[...new Set(modules)].map((each) => requestAt(each, point))));
  const some = `${Math.min(MOST_LAYERS, layers.length)} of the ${layers.length} layers`;
  const all = `Capture ${layers.length > MOST_LAYERS ? some : "every layer"}`;
  const everyLayer = (): void => more(HookPoint.OUTPUT, further);
  if (one === undefined) {
    const text = `Choose places in the model, or under Ask; or take ${some}, of all depths.`;
    return <Empty title="Nothing was captured" {...{ text, action: all }} onAct={everyLayer} />;
  }
  const part = exampleOf(asked, one.tensor, row);
  const changes = part.shape.length > 0 && canChange(asked, one);
  const shown = { asked, row, part, captured: one, axes: axesAt(asked, one, part), changes };
  const View = layoutOf(part.shape).kind === "planes" ? Channels : Sequence;
  const smooth = outputs.filter(({ tensor }) => FLOATING.includes(tensor.dataType));
  const missing = smooth.filter((each) => !gradientAt(asked, each)).map(({ module }) => module);
  const seek = (): void => {
    setSought(sought + 1); // what was chosen is not what matters most
    more(HookPoint.GRAD_OUTPUT, missing);
  };
  return (
    <div class="activations">
      <Panel id="captured" title="Captured">
        <div class="tools">
          <Button text={all} class="quiet" onClick={everyLayer} />
          {missing.length > 0 && <Button text="Which parts matter most?" class="quiet" onClick={seek} />}
        </div>
        <ul class="captured" aria-label="Places">
          {captured.map(({ name, tensor }, index) => (
            <li key={name}>
              <button class="captured-place" aria-pressed={name === one.name} onClick={() => setWanted(name)}>
                <bdi class="mono">{name}</bdi>
                <span class="muted small">{shapeText(tensor.shape)}</span>
                {strongest[index] && <span class="small strongest">{strongest[index]}</span>}
              </button>
            </li>
          ))}
        </ul>
        {smooth.length > missing.length && (
          <p class="muted small">
            Below each: its part with the largest effect, gradient × activation, on {targetText(asked, row)}.
          </p>
        )}
      </Panel>
      <Panel
        id="activation"
        title={[<bdi class="mono">{one.name}</bdi>, " ", <span class="muted">{shapeText(part.shape)}</span>]}
        kind="shown"
      >
        {part.shape === one.tensor.shape && (
          <p class="muted small">Its first axis is not that of the examples: all of it is shown.</p>
        )}
        <Statistics values={part.values} />
        {part.values.length > 0 && <View key={`${one.name} ${sought}`} {...shown} />}
        {changes && <Measured key={one.name} {...shown} />}
      </Panel>
    </div>
  );
}
