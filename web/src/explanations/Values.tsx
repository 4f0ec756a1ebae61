/** The values of one explanation, as what they are about: an image, a text, features. */

import { backgroundOf } from "./backgrounds.js";
import { Overlay } from "./Overlay.js";
import { Tokens } from "./Tokens.js";
import { type Attribution, fromMessage } from "@cutaway/client";
import { tryWithout } from "../edits/live.js";
import { layoutOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import type { Pixels } from "../pictures/colours.js";
import { Bars, type Named } from "../pictures/Bars.js";
import { exact } from "../ui/text.js";
import { HeatMap } from "../pictures/Picture.js";
import { type Asked, exampleOf } from "../state/asked.js";
import { tensorsIn } from "../state/draft.js";

const MOST_BARS = 40;

/** One explanation of an answer, for one example. */
export type ExplanationProps = Readonly<{ asked: Asked; row: number; attribution: Attribution }>;

/** Shows them over the tokens of a text, or in a figure for each input or layer. */
export function Values({ asked, row, attribution }: ExplanationProps): preact.JSX.Element {
  const { tokens } = attribution.message;
  const texts = tokens?.texts[row]?.tokens ?? [];
  if (tokens?.values && texts.length > 0) {
    const { values } = exampleOf(asked, fromMessage(tokens.values), row);
    const tryAt = (index: number): void => tryWithout({ address: attribution.layer }, [index]);
    return <Tokens texts={texts} values={values} onChoose={tryAt} />;
  }
  const ofLayer = attribution.layer !== "" && !attribution.method.startsWith("Neuron");
  const figures = Object.entries(attribution.values).map(([name, tensor]) => (
    <Figure
      key={name}
      {...(ofLayer ? { under: backgroundOf(asked, row, ""), names: [] } : inputAt(asked, row, name))}
      name={name}
      label={`${attribution.method} of ${name}`}
      part={exampleOf(asked, tensor, row)}
    />
  ));
  return <>{figures}</>;
}

interface FigureProps {
  /** What the values belong to: an input or a layer. */
  readonly name: string;
  readonly label: string;
  readonly part: Part;
  readonly under: Pixels | undefined;
  /** Of features. */
  readonly names: readonly string[];
  /** The numbers that the values are about. */
  readonly beside?: Part["values"] | undefined;
}

/** Shows values as their shape asks for: over an image, as bars, or as rows. */
export function Figure({ name, label, part, under, names, beside }: FigureProps): preact.JSX.Element {
  const layout = layoutOf(part.shape);
  return (
    <figure>
      <figcaption class="muted small">
        <bdi class="mono">{name}</bdi>
      </figcaption>
      {layout.kind === "planes" ? (
        <Overlay part={part} under={under} label={label} />
      ) : layout.rows === 1 ? (
        <>
          <Bars bars={largest(part.values, names, beside)} />
          {part.values.length > MOST_BARS && <p class="muted small">The largest of {part.values.length}.</p>}
        </>
      ) : (
        <HeatMap label={label} values={part.values} width={layout.width} signed />
      )}
    </figure>
  );
}

/** Returns what an answer knows of an input: its image, the names of its features, its numbers. */
export function inputAt(asked: Asked, row: number, name: string): Pick<FigureProps, "under" | "names" | "beside"> {
  const tensor = tensorsIn(asked.question)[name];
  return {
    under: backgroundOf(asked, row, name),
    names: asked.reply.message.featureNames.find(({ input }) => input === name)?.names ?? [],
    beside: tensor && exampleOf(asked, tensor, row).values,
  };
}

function largest(values: ArrayLike<number>, names: readonly string[], beside?: ArrayLike<number>): Named[] {
  return Array.from(values, (value, index) => {
    const input = beside?.[index];
    return { name: names[index] ?? `element ${index}`, value, ...(input === undefined ? {} : { about: exact(input) }) };
  })
    .sort((one, other) => Math.abs(other.value) - Math.abs(one.value))
    .slice(0, MOST_BARS);
}
