/** The values of one explanation, as what they are about: an image, a text, features. */

import { type Attribution, fromMessage, HookPoint, type Tensor } from "@cutaway/client";
import { useMemo, useState } from "preact/hooks";
import { tryWithout } from "../edits/live.js";
import { axisNames, flattened, layoutOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { statisticsOf, unpaddedLength } from "../measures/statistics.js";
import { Bars, type Named } from "../pictures/Bars.js";
import { HeatMap, Legend, Picture } from "../pictures/Picture.js";
import { imageOf, type Pixels, pixelsOf, type Scale, scaleOf } from "../pictures/colours.js";
import { type Exchange, exampleOf } from "../state/exchange.js";
import { tensorsIn } from "../state/draft.js";
import { Slider } from "../ui/controls.js";
import { exact, short, signed } from "../ui/text.js";

const MOST_BARS = 40;

/** One explanation of an answer, for one example. */
export type ExplanationProps = Readonly<{ asked: Exchange; row: number; attribution: Attribution }>;

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
export function inputAt(asked: Exchange, row: number, name: string): Pick<FigureProps, "under" | "names" | "beside"> {
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

const START = 0.9;
const OPACITY = { least: 0, most: 1, step: 0.05 };

type OverlayProps = Readonly<{ part: Part; under: Pixels | undefined; label: string }>;

/** Shows the sum over channels; explanation and image are as large as the larger of them. */
function Overlay({ part, under, label }: OverlayProps): preact.JSX.Element {
  const [opacity, setOpacity] = useState(START);
  const { values, width, scale, pixels } = useMemo(() => mapOf(part), [part]);
  const over = axisNames(part.shape.length).filter((_, axis) => axis < part.shape.length - 2 && part.shape[axis] !== 1);
  return (
    <div class="overlay">
      <Picture {...{ label, values, width, pixels, under }} opacity={under ? opacity : 1} />
      <p class="small muted extremes">{`${extremesText(values, width)} ${over.length ? `Summed over each ${over.join(" and ")}.` : ""}`}</p>
      <div class="tools">
        {under && (
          <Slider label="Opacity" kind="opacity small muted" {...OPACITY} value={opacity} onChange={setOpacity} />
        )}
        <Legend scale={scale} />
      </div>
    </div>
  );
}

/** Returns what a picture of an explanation needs: its sum over channels, in colours that are symmetric around zero. */
function mapOf(part: Part): { values: Part["values"]; width: number; scale: Scale; pixels: Pixels["pixels"] } {
  const { values, shape } = flattened(part);
  const scale = scaleOf(values, true);
  return { values, width: shape[1] ?? 1, scale, pixels: pixelsOf(values, scale) };
}

/** Returns where the largest numbers of both signs are, in words. */
function extremesText(values: Part["values"], width: number): string {
  const { least, most } = statisticsOf(values);
  const told = (value: number): string => {
    const index = values.indexOf(value);
    return `${signed(value)} at row ${Math.floor(index / width)}, column ${index % width}`;
  };
  if (!(most > least)) return "";
  return least < 0 ? `Largest: ${told(most)}; least: ${told(least)}.` : `Largest: ${told(most)}.`;
}

/**
 * Returns the image that an explanation of an input or a layer is laid over: as it was sent, or as a hook saw it going
 * into the model, which is the only way to know what an adapter made of a file. Undefined if there is none.
 */
export function backgroundOf(asked: Exchange, row: number, name: string): Pixels | undefined {
  const seen = asked.reply.captured.filter(({ module, point }) => module === "" && point === HookPoint.INPUT);
  const known = seen.map(({ path, tensor }): [string, Tensor] => [path, tensor]);
  const inputs = [...Object.entries(tensorsIn(asked.question)), ...known];
  const parts = inputs.map(([input, tensor]) => [input, exampleOf(asked, tensor, row)] as const);
  return imageFor(name, parts);
}

/** Returns the image that belongs to a name: the input itself, or for a layer the first image among the inputs. */
export function imageFor(name: string, inputs: readonly (readonly [string, Part])[]): Pixels | undefined {
  const own = inputs.filter(([input]) => input === name);
  const image = (own.length ? own : inputs).map(([, part]) => part).find(isImage);
  return image && pictureOf(image);
}

/** Returns an image [channels, height, width] as pixels. */
export function pictureOf({ values, shape: [channels = 1, height = 1, width = 1] }: Part): Pixels {
  return { pixels: imageOf(values, channels), height, width };
}

/** Whether an example is an image [channels, height, width] with one or three channels. */
export function isImage({ shape }: Pick<Part, "shape">): boolean {
  return shape.length === 3 && (shape[0] === 1 || shape[0] === 3) && Math.min(shape[1] ?? 0, shape[2] ?? 0) > 1;
}

interface TokensProps {
  readonly texts: readonly string[];
  readonly values: ArrayLike<number>;
  /** Tries what happens without a token. */
  readonly onChoose?: (index: number) => void;
}

/** Shows the tokens without their padding; each has its number as a title, and below it for those who cannot point. */
export function Tokens({ texts, values, onChoose }: TokensProps): preact.JSX.Element {
  const Tag = onChoose ? "button" : "span";
  const scale = scaleOf(values, true);
  const pixels = pixelsOf(values, scale);
  return (
    <>
      <ol class="tokens">
        {texts.slice(0, unpaddedLength(texts, values)).map((text, index) => {
          const value = short(values[index] ?? Number.NaN);
          const [red, green, blue] = pixels.subarray(4 * index, 4 * index + 3);
          const style = {
            background: `rgb(${red} ${green} ${blue})`,
            color: isDark(red, green, blue) ? "#ffffff" : "#000000",
          };
          const title = `${text}: ${value}${onChoose ? ". What happens without it?" : ""}`;
          return (
            <li key={index}>
              <Tag class="piece" {...{ style, title }} onClick={() => onChoose?.(index)}>
                <bdi>{text}</bdi>
              </Tag>
              <small class="muted number">{value}</small>
            </li>
          );
        })}
      </ol>
      <Legend scale={scale} />
    </>
  );
}

function isDark(red = 0, green = 0, blue = 0): boolean {
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}
