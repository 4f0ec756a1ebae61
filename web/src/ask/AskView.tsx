/** View 2: a question, and what the model says. */

import { Chosen } from "./Chosen.js";
import { History } from "./History.js";
import { Inputs } from "./Inputs.js";
import { Prediction } from "./Prediction.js";
import { Target } from "./Target.js";
import { Problem } from "../app/Problem.js";
import { alter, asked, complete, draft, model, row } from "../state/asking.js";
import "./ask.css";

/** The fields of the contract that have a section of their own here. */
export const SECTIONS = ["tensors", "raw", "input", "target", "captures", "attributions", "input_gradients"];

/** Shows the question beside its answer. */
export function AskView(): preact.JSX.Element | null {
  const detail = model.value;
  if (detail === undefined) return null;
  const gradients = Boolean(draft.value.inputGradients);
  return (
    <div class="ask">
      <div class="question">
        <div class="column">
          <section class="panel" aria-labelledby="input">
            <h2 id="input">Input</h2>
            <Inputs key={detail.model?.name} detail={detail} />
            <Problem of={["tensors", "raw", "input"]} />
          </section>
          <section class="panel" aria-labelledby="about-what">
            <h2 id="about-what">About what</h2>
            <Target detail={detail} />
            <Problem of={["target"]} />
            <label class="check">
              <input
                type="checkbox"
                checked={gradients}
                onChange={({ currentTarget }) => alter({ inputGradients: currentTarget.checked })}
              />
              Gradient at the input
            </label>
            <Problem of={["input_gradients"]} />
          </section>
        </div>
        <div class="column">
          <Chosen detail={detail} />
        </div>
      </div>
      <div class="answer">
        <section class="panel" aria-labelledby="prediction">
          <h2 id="prediction">Prediction</h2>
          {!complete.value && <p class="muted">Give the model an input, then ask.</p>}
          <Problem except={SECTIONS} />
          {asked.value && <Prediction asked={asked.value} row={row.value} />}
        </section>
        <History />
      </div>
    </div>
  );
}
