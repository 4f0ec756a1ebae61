/** View 6: gradients of the target at the inputs, through the layers, and at the parameters. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Panel } from "../app/parts.js";
import { FLOATING } from "../ask/ways.js";
import { depthsOf, depthText, gradientsEverywhere, onLogScale } from "./depth.js";
import { backgroundOf } from "../explanations/backgrounds.js";
import { Figure, namesOf } from "../explanations/Values.js";
import { type Part, numbersOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { Select } from "../app/controls.js";
import { parameterAt } from "../models/places.js";
import { Bars } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import { Statistics } from "../pictures/Statistics.js";
import type { Tensor } from "@cutaway/client";
import { type Asked, exampleOf, gradientOf, targetText, type ViewProps } from "../state/asked.js";
import "./gradients.css";

/** Shows them for one example; those of parameters are of all examples together. */
export function GradientsView({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const depths = depthsOf(asked);
  const atInputs = Object.entries(asked.reply.inputGradients);
  const everywhere = (): void => {
    const { captures } = asked.question;
    const floating = asked.model.inputs.some(({ dataType }) => FLOATING.includes(dataType));
    ask({
      ...(floating ? { inputGradients: true } : {}),
      captures: [...(captures ?? []), ...gradientsEverywhere(asked.model)],
    });
  };
  return (
    <div class="gradients">
      <section class="panel" aria-labelledby="by-layer">
        <div class="tools">
          <h2 id="by-layer">Layer by layer</h2>
          <button class={depths.length > 1 ? "" : "primary"} onClick={everywhere}>
            Ask for the gradient everywhere
          </button>
        </div>
        {depths.length > 1 ? (
          <>
            <p>{depthText(depths)}</p>
            <Bars {...onLogScale(depths)} paths />
            <p class="muted small">
              Of {targetText(asked, row)}: the root of the mean square of the gradient at each layer’s output, over all
              examples, on a logarithmic scale, from the first layer to the last.
            </p>
          </>
        ) : (
          <p class="muted">Gradients inside the model were not asked for yet.</p>
        )}
      </section>
      {atInputs.map(([name, tensor]) => (
        <InputGradient key={name} name={name} gradient={gradientOf(asked, tensor, row)} asked={asked} row={row} />
      ))}
      <Parameters gradients={asked.reply.parameterGradients}>
        <button onClick={() => ask({ captures: [...(asked.question.captures ?? []), parameterAt("**")] })}>
          Ask for the gradient at every parameter
        </button>
      </Parameters>
    </div>
  );
}

interface ParametersProps {
  readonly gradients: Readonly<Record<string, Tensor>>;
  readonly children: ComponentChildren;
}

/** The norm of each, and the numbers of one; else the way to ask for them. */
function Parameters({ gradients, children }: ParametersProps): preact.JSX.Element {
  const names = Object.keys(gradients);
  const [chosen, choose] = useState("");
  const name = names.includes(chosen) ? chosen : (names[0] ?? "");
  const one = gradients[name];
  if (!one) {
    return (
      <Panel id="parameters" title="At parameters">
        <div class="tools">{children}</div>
      </Panel>
    );
  }
  const values = numbersOf(one);
  const bars = Object.entries(gradients).map(([each, tensor]) => ({ name: each, value: normOf(tensor) }));
  return (
    <Panel id="parameters" title="At parameters">
      <Bars bars={bars} paths />
      <p class="muted small">Norms, over all examples.</p>
      <Select label="Parameter" of={names.map((each) => [each, each] as const)} value={name} onChoose={choose} />
      <Statistics values={values} />
      <HeatMap
        label={`Gradient at ${name}`}
        values={values}
        width={values.length / (one.shape.length > 1 ? (one.shape[0] ?? 1) : 1)}
        signed
      />
    </Panel>
  );
}

function normOf(tensor: Tensor): number {
  return statisticsOf(numbersOf(tensor)).norm;
}

interface InputProps {
  readonly name: string;
  readonly gradient: Part;
  readonly asked: Asked;
  readonly row: number;
}

function InputGradient({ name, gradient, asked, row }: InputProps): preact.JSX.Element {
  const sent = Array.isArray(asked.question.inputs)
    ? undefined
    : (asked.question.inputs as Record<string, Tensor>)[name];
  const product = sent && times(gradient, exampleOf(asked, sent, row));
  return (
    <section class="panel" aria-label={`Gradient at ${name}`}>
      <h2>
        At the input <bdi class="mono">{name}</bdi>
      </h2>
      <Statistics values={gradient.values} />
      <div class="pair">
        {[["Gradient", gradient] as const, ["Gradient × input", product] as const].map(
          ([title, part]) =>
            part && (
              <Figure
                key={title}
                name={title}
                label={`${title} at ${name}`}
                part={part}
                under={backgroundOf(asked, row)}
                names={namesOf(asked, name)}
              />
            ),
        )}
      </div>
    </section>
  );
}

function times({ values, shape }: Part, other: Part): Part {
  return { values: Float64Array.from(values, (value, index) => value * (other.values[index] ?? Number.NaN)), shape };
}
