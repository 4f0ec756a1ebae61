/** View 6: gradients of the target at the inputs, through the layers, and at the parameters. */

import { Panel } from "../app/Panel.js";
import { FLOATING } from "../ask/start.js";
import { depthsOf, gradientsEverywhere, onLogScale } from "./depth.js";
import { backgroundOf } from "../explanations/backgrounds.js";
import { Figure, namesOf } from "../explanations/Values.js";
import { type Part, numbersOf, partOf } from "../measures/numbers.js";
import { statisticsOf } from "../measures/statistics.js";
import { Bars } from "../pictures/Bars.js";
import { Statistics } from "../pictures/Statistics.js";
import type { Tensor } from "@cutaway/client";
import type { Asked, ViewProps } from "../state/asked.js";
import "./gradients.css";

/** Shows them for one example; those of parameters are of all examples together. */
export function GradientsView({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const depths = depthsOf(asked);
  const atInputs = Object.entries(asked.reply.inputGradients);
  const parameters = Object.entries(asked.reply.parameterGradients);
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
          <button onClick={everywhere}>Ask for the gradient everywhere</button>
        </div>
        {depths.length ? (
          <>
            <Bars {...onLogScale(depths)} />
            <p class="muted small">
              The root of the mean square, on a scale of powers of ten, from the first layer to the last.
            </p>
          </>
        ) : (
          <p class="muted">No gradient inside the model was asked for.</p>
        )}
      </section>
      {atInputs.map(([name, tensor]) => (
        <InputGradient key={name} name={name} gradient={partOf(tensor, row)} asked={asked} row={row} />
      ))}
      {parameters.length > 0 && (
        <Panel id="parameters" title="At parameters">
          <Bars bars={parameters.map(([name, tensor]) => ({ name, value: statisticsOf(numbersOf(tensor)).norm }))} />
          <p class="muted small">Norms, over all examples.</p>
        </Panel>
      )}
    </div>
  );
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
  const product = sent && times(gradient, partOf(sent, row));
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
