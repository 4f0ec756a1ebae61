/** View 2: a question, and what the model says. */

import { Check } from "../ui/controls.js";
import { Panel } from "../ui/parts.js";
import { Chosen } from "./Chosen.js";
import { History } from "./History.js";
import { Inputs } from "./Inputs.js";
import { Prediction } from "./Prediction.js";
import { Scales, Steer } from "./Steering.js";
import { Target } from "./Target.js";
import { Writing } from "./Writing.js";
import { Problem } from "../ui/problems.js";
import { alter, asked, changed, complete, draft, model, row } from "../state/asking.js";
import "./ask.css";

/** The fields of the contract that have a section of their own here. */
const SECTIONS = [
  "tensors",
  "raw",
  "input",
  "target",
  "captures",
  "attributions",
  "input_gradients",
  "edits",
  "generate",
];

/** Shows the question beside its answer. */
export function AskView(): preact.JSX.Element | null {
  const detail = model.value;
  if (detail === undefined) return null;
  const gradients = Boolean(draft.value.inputGradients);
  return (
    <div class="ask">
      <div class="question">
        <div class="column">
          <Panel id="input" title="Input">
            <Inputs key={detail.model?.name} detail={detail} />
            <Problem of={["tensors", "raw", "input"]} />
          </Panel>
          <Panel id="about-what" title="About what">
            <Target detail={detail} />
            <Problem of={["target"]} />
            <Check
              label="Gradient at the input"
              checked={gradients}
              onCheck={(inputGradients) => alter({ inputGradients })}
            />
            <Problem of={["input_gradients"]} />
            <Writing detail={detail} />
            <Problem of={["generate"]} />
          </Panel>
          <Steer key={detail.model?.name} detail={detail} />
        </div>
        <div class="column">
          <Chosen detail={detail} />
        </div>
      </div>
      <div class="answer">
        <Panel id="prediction" title="Prediction">
          {!asked.value && (
            <p class="muted">{complete.value ? "Ask to see it." : "Give the model an input, then ask."}</p>
          )}
          <Problem except={SECTIONS} />
          <Scales />
          {asked.value && (
            <div class={changed.value ? "stale" : ""}>
              <Prediction asked={asked.value} row={row.value} />
            </div>
          )}
        </Panel>
        <History />
      </div>
    </div>
  );
}
