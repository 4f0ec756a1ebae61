/** View 6: gradients of the target at the inputs, through the layers, and at the parameters. */

import { HookPoint } from "@cutaway/client";
import { scaleLog } from "d3-scale";
import type { ComponentProps } from "preact";
import { useState } from "preact/hooks";
import { FLOATING } from "../ask/ways.js";
import { Figure, inputAt } from "../explanations/Values.js";
import { indicesOf, numbersOf, type Part, statisticsOf } from "../measures/index.js";
import { capturing, leavesOf, parameterAt, requestAt, spread } from "../models/places.js";
import { Bars, type Named } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import { ask, draft, type Exchange, gradientOf, targetText, type ViewProps } from "../state/index.js";
import { Button, Panel, Select, short, Statistics } from "../ui/index.js";
import "./gradients.css";

/** The most layers that are asked for at once, of all depths. */
const MOST_LAYERS = 128;

/** Shows them for one example; those of parameters are of all examples together. */
export function GradientsView({ asked, row }: ViewProps): preact.JSX.Element {
  const depths = depthsOf(asked);
  const isOfSeveral = (asked.reply.message.predictions?.targetsPerExample ?? 0) > 0;
  const everywhere = (): void => {
    const floating = asked.model.inputs.some(({ dataType }) => FLOATING.includes(dataType));
    const steps = asked.reply.captured.filter(({ tensor }) => !FLOATING.includes(tensor.dataType));
    const smooth = leavesOf(asked.model).filter(({ name }) => !steps.some(({ module }) => module === name));
    const layers = spread(smooth, MOST_LAYERS);
    const added = layers.map(({ name }) => requestAt(name, HookPoint.GRAD_OUTPUT));
    const inputGradients = floating || (asked.question.inputGradients ?? false);
    void ask({ inputGradients, ...capturing(draft.value, ...added) });
  };
  const kind = depths.length ? "" : "primary";
  const button = <Button text="Ask for the gradient everywhere" class={kind} onClick={everywhere} />;
  const atParameters = (): void => void ask(capturing(draft.value, parameterAt("**")));
  return (
    <div class="gradients">
      <Panel id="by-layer" title="Layer by layer" beside={button}>
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
            <Button text="Ask for the gradient at every parameter" onClick={atParameters} />
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
  const nameOf = (x: number, y: number): string => `[${indicesOf(one.shape, y * width + x).join(", ")}]`;
  return (
    <>
      <Bars bars={all.map(([each, tensor]) => ({ name: each, value: statisticsOf(numbersOf(tensor)).norm }))} paths />
      <p class="muted small">Norms, over all examples.</p>
      <Select label="Parameter" of={all.map(([each]) => each)} value={name} onChange={choose} />
      <Statistics values={values} />
      <HeatMap label={`Gradient at ${name}`} {...{ values, width, nameOf }} signed />
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
  return { values: Float64Array.from(values, (value, index) => value * (factors[index] ?? NaN)), shape };
}

/** Returns how large the captured gradients are, in the order of the modules: by root mean square, whatever their size. */
export function depthsOf({ model, reply }: Exchange): Named[] {
  const order = new Map(model.modules.map(({ name }, index) => [name, index]));
  return reply.captured
    .filter(({ point }) => point === HookPoint.GRAD_OUTPUT)
    .sort((one, other) => (order.get(one.module) ?? 0) - (order.get(other.module) ?? 0))
    .map(({ name, tensor }) => {
      const { norm, count } = statisticsOf(numbersOf(tensor));
      return { name: name.replace("@grad_output", ""), value: norm / Math.sqrt(Math.max(1, count)) };
    });
}

/** A gradient that is smaller than the largest by this factor has vanished. */
const VANISHED = 1e-3;

/** Returns where gradients vanish, in words. */
export function depthText(depths: readonly Named[]): string {
  const broken = depths.filter(({ value }) => !Number.isFinite(value)).map(({ name }) => name);
  if (broken.length) return `The gradient is not finite at ${broken.join(", ")}.`;
  const [least, ...rest] = [...depths].sort((one, other) => one.value - other.value);
  const most = rest.at(-1);
  if (!least || !most) return "";
  if (most.value === 0) return "The gradient is zero everywhere.";
  const range = `from ${short(least.value)} at ${least.name} to ${short(most.value)} at ${most.name}`;
  const gone = depths.filter(({ value }) => value < VANISHED * most.value).map(({ name }) => name);
  return gone.length
    ? `It vanishes, below a thousandth of the largest, at ${gone.join(", ")}: ${range}.`
    : `It vanishes at none of these ${depths.length} places: ${range}, all within a factor of ${short(most.value / least.value, 2)}.`;
}

/** Returns sizes that differ by powers of ten as bars on a logarithmic scale; one of zero has none, and says so. */
export function onLogScale(depths: readonly Named[]): ComponentProps<typeof Bars> {
  const sizes = depths.map(({ value }) => value).filter((value) => value > 0 && Number.isFinite(value));
  const least = Math.min(...sizes, 1) / 10;
  const length = scaleLog([least, Math.max(...sizes, least * 100)], [0, 1]).clamp(true);
  return {
    bars: depths,
    ticks: length.ticks(4).filter((tick) => Number.isInteger(Math.round(1e6 * Math.log10(tick)) / 1e6)),
    lengthOf: (value) => (value > 0 ? length(value) : 0),
    textOf: (value) => (value === 0 ? "0, vanished" : short(value)),
  };
}
