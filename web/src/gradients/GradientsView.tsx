/** View 6: gradients of the target at the inputs, through the layers, and at the parameters. */

import { useState } from "preact/hooks";
import { HookPoint } from "@cutaway/client";
import { Panel, Statistics } from "../ui/parts.js";
import { FLOATING } from "../ask/ways.js";
import { depthsOf, depthText, onLogScale } from "./depth.js";
import { Figure, inputAt } from "../explanations/Values.js";
import { indicesOf } from "../measures/layout.js";
import { type Part, numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { Button, Select } from "../ui/controls.js";
import { capturing, leavesOf, parameterAt, requestAt, spread } from "../models/places.js";
import { Bars } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import { draft } from "../state/asking.js";
import { type Exchange, gradientOf, targetText, type ViewProps } from "../state/exchange.js";
import "./gradients.css";

/** The most layers that are asked for at once, of all depths. */
const MOST_LAYERS = 128;

/** Shows them for one example; those of parameters are of all examples together. */
export function GradientsView({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const depths = depthsOf(asked);
  const isOfSeveral = (asked.reply.message.predictions?.targetsPerExample ?? 0) > 0;
  const everywhere = (): void => {
    const floating = asked.model.inputs.some(({ dataType }) => FLOATING.includes(dataType));
    const steps = asked.reply.captured.filter(({ tensor }) => !FLOATING.includes(tensor.dataType));
    const smooth = leavesOf(asked.model).filter(({ name }) => !steps.some(({ module }) => module === name));
    const layers = spread(smooth, MOST_LAYERS);
    const added = layers.map(({ name }) => requestAt(name, HookPoint.GRAD_OUTPUT));
    const inputGradients = floating || (asked.question.inputGradients ?? false);
    ask({ inputGradients, ...capturing(draft.value, ...added) });
  };
  return (
    <div class="gradients">
      <Panel
        id="by-layer"
        title="Layer by layer"
        beside={
          <Button text="Ask for the gradient everywhere" class={depths.length ? "" : "primary"} onClick={everywhere} />
        }
      >
        {depths.length > 0 ? (
          <>
            <p>{depthText(depths)}</p>
            <Bars {...onLogScale(depths)} paths />
            <p class="muted small">
              Of {isOfSeveral ? "all targets together" : targetText(asked, row)}: the root of the mean square of the
              gradient at each layer’s output, over all examples, on a logarithmic scale, from the first layer to the
              last; {depths.length} places are shown, the model has {leavesOf(asked.model).length} layers.
            </p>
          </>
        ) : (
          <p class="muted">Gradients inside the model were not asked for yet.</p>
        )}
      </Panel>
      {Object.entries(asked.reply.inputGradients).map(([name, tensor]) => (
        <InputGradient key={name} {...{ asked, row, name }} gradient={gradientOf(asked, tensor, row)} />
      ))}
      <Panel id="parameters" title="At parameters">
        {Object.keys(asked.reply.parameterGradients).length ? (
          <Parameters reply={asked.reply} />
        ) : (
          <div class="tools">
            <Button
              text="Ask for the gradient at every parameter"
              onClick={() => ask(capturing(draft.value, parameterAt("**")))}
            />
          </div>
        )}
      </Panel>
    </div>
  );
}

/** The norm of each, and the numbers of one. */
function Parameters({ reply }: Pick<Exchange, "reply">): preact.JSX.Element | null {
  const [chosen, choose] = useState("");
  const all = Object.entries(reply.parameterGradients);
  const [name, one] = all.find(([each]) => each === chosen) ?? all[0] ?? [];
  if (name === undefined || one === undefined) return null;
  const values = numbersOf(one);
  const width = values.length / (one.shape.length > 1 ? (one.shape[0] ?? 1) : 1);
  return (
    <>
      <Bars bars={all.map(([each, tensor]) => ({ name: each, value: statisticsOf(numbersOf(tensor)).norm }))} paths />
      <p class="muted small">Norms, over all examples.</p>
      <Select label="Parameter" of={all.map(([each]) => [each, each] as const)} value={name} onChoose={choose} />
      <Statistics values={values} />
      <HeatMap
        label={`Gradient at ${name}`}
        values={values}
        width={width}
        nameOf={(x, y) => `[${indicesOf(one.shape, y * width + x).join(", ")}]`}
        signed
      />
    </>
  );
}

type InputProps = Readonly<{ asked: Exchange; row: number; name: string; gradient: Part }>;

function InputGradient({ asked, row, name, gradient }: InputProps): preact.JSX.Element {
  const input = inputAt(asked, row, name);
  const figure = (title: string, part: Part): preact.JSX.Element => (
    <Figure {...input} name={title} label={`${title} at ${name}`} part={part} />
  );
  return (
    <Panel id={`gradient-${name}`} title={["At the input ", <bdi class="mono">{name}</bdi>]}>
      <p class="muted small">Of {targetText(asked, row)}.</p>
      <Statistics values={gradient.values} />
      <div class="pair">
        {figure("Gradient", gradient)}
        {input.beside && figure("Gradient × input", times(gradient, input.beside))}
      </div>
    </Panel>
  );
}

function times({ values, shape }: Part, factors: Part["values"]): Part {
  return { values: Float64Array.from(values, (value, index) => value * (factors[index] ?? Number.NaN)), shape };
}
