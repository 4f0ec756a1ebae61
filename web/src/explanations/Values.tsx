/** The values of one explanation, as what they are about: an image, a text, features. */

import { type Attribution, type Example, fromMessage, type Tensor } from "@cutaway/client";
import { useMemo } from "preact/hooks";
import { tryWithout } from "../edits/live.js";
import { axisNames, flattened, layoutOf, type Part, statisticsOf, sumsBy, unpaddedLength } from "../measures/index.js";
import { Bars, type Named } from "../pictures/Bars.js";
import { HeatMap, Legend, Picture } from "../pictures/Picture.js";
import { Series } from "../pictures/Series.js";
import {
  areSigned,
  imageOf,
  clippedText,
  type Pixels,
  pixelsOf,
  type Scale,
  scaleOf,
  veilOf,
} from "../pictures/colours.js";
import { exampleOf, examplesIn, type Exchange, type FileExample, inputsOf, tensorsIn } from "../state/index.js";
import { Check, exact, short, signed, Slider, useFields, useLoaded } from "../ui/index.js";
import { Swap } from "./Swap.js";

const MOST_BARS = 40;

/** One explanation of an answer, for one example. */
export type ExplanationProps = Readonly<{ asked: Exchange; row: number; attribution: Attribution }>;

/** Shows them, or others of their names and shapes, over the tokens of a text, or in a figure for each input or layer. */
export function Values({ asked, row, attribution, others }: ExplanationProps & OtherProps): preact.JSX.Element {
  const { tokens } = attribution.message;
  const file = useFile(examplesIn(asked.question)[row]);
  const texts = tokens?.texts[row]?.tokens ?? [];
  if (tokens?.values && texts.length > 0) {
    const { values } = exampleOf(asked, fromMessage(tokens.values), row);
    const tryAt = (index: number): void => tryWithout({ address: attribution.layer }, [index]);
    const scale = others && scaleOf(values, true);
    const sums = others ? byToken(exampleOf(asked, Object.values(others)[0] as Tensor, row), texts.length) : values;
    return (
      <>
        <Tokens {...{ texts, scale }} values={sums} against={others ? "" : againstOf(tokens, row)} onChoose={tryAt} />
        {!others && <Swap {...{ asked, row, texts }} />}
      </>
    );
  }
  const scaleIn = (own: Tensor): Scale => scaleOf(flattened(exampleOf(asked, own, row)).values, true, true);
  const ofLayer = attribution.layer !== "" && !attribution.method.startsWith("Neuron");
  const parts = Object.entries(others ?? attribution.values).map(([name, tensor]) => {
    const part = exampleOf(asked, tensor, row);
    const known = ofLayer ? { under: backgroundOf(asked, row, "") } : inputAt(asked, row, name);
    if (others) return { name, part, ...known, under: undefined, scale: scaleIn(attribution.values[name] ?? tensor) };
    return { name, part, ...known, under: known.under ?? (file && fits(part.shape, file) ? file : undefined) };
  });
  return <Figures label={attribution.method} parts={parts} />;
}

/** The values to show instead of those of the explanation. */
type OtherProps = Readonly<{ others?: Attribution["values"] }>;

/** Returns the sum of each token, of values [tokens, width]; of Grad-CAM, [1, tokens], the values themselves. */
export function byToken({ values }: Pick<Part, "values">, count: number): Float64Array {
  const width = values.length / count;
  return sumsBy(values, count, (index) => Math.floor(index / width));
}

/** Values, what they belong to, and what is known of that. */
export interface Shown {
  /** An input or a layer. */
  readonly name: string;
  readonly part: Part;
  readonly under?: Pixels | undefined;
  /** Of the features of an input; undefined for a layer. */
  readonly names?: readonly string[] | undefined;
  /** The scale of a picture, if not its own. */
  readonly scale?: Scale | undefined;
  /** The numbers that the values are about. */
  readonly beside?: Part["values"] | undefined;
}

/** Shows a figure for each of several parts; those that are vectors or numbers are bars of one scale. */
export function Figures({ label, parts }: Readonly<{ label: string; parts: readonly Shown[] }>): preact.JSX.Element {
  const vectors = parts.filter(isVector);
  const joined = vectors.length > 1 ? vectors : [];
  return (
    <>
      {joined.length > 0 && <Vectors parts={joined} />}
      {parts.map(
        (each) => joined.includes(each) || <Figure key={each.name} {...each} label={`${label} of ${each.name}`} />,
      )}
    </>
  );
}

/** Whether values are shown as bars. */
export function isVector({ part: { shape }, names }: Shown): boolean {
  const layout = layoutOf(shape, names);
  return layout.kind === "rows" && layout.rows === 1;
}

/** Shows values as their shape asks for: over an image, as lines over time, as bars, or as rows. */
export function Figure({ label, ...shown }: Shown & Readonly<{ label: string }>): preact.JSX.Element {
  const { name, part, under, names, beside, scale } = shown;
  const layout = layoutOf(part.shape, names);
  const signed = areSigned(label, part.values);
  return (
    <figure>
      <figcaption class="muted small">
        <bdi class="mono">{name}</bdi>
      </figcaption>
      {layout.kind === "planes" ? (
        <Overlay {...{ part, label, signed, scale, under }} />
      ) : layout.kind === "series" ? (
        <Series {...{ part, beside }} names={names ?? []} scale={scaleOf(part.values, signed)} />
      ) : layout.rows === 1 ? (
        <Vectors parts={[shown]} />
      ) : (
        <HeatMap label={label} values={part.values} width={layout.width} signed={signed} />
      )}
    </figure>
  );
}

type VectorsProps = Readonly<{ parts: readonly Shown[]; most?: number }>;

/** The `most` largest numbers of vectors as bars, each with its name and what was sent. */
export function Vectors({ parts, most = MOST_BARS }: VectorsProps): preact.JSX.Element {
  const all = parts.flatMap(({ name, part: { values, shape }, names = [], beside }) =>
    Array.from(values, (value, index): Named => {
      const [input, own] = [beside?.[index], parts.length > 1 ? `${name} ${index}` : `element ${index}`];
      const bar = { name: names[index] ?? (shape.length > 0 ? own : name), value };
      return input === undefined ? bar : { ...bar, about: exact(input) };
    }),
  );
  const scale = parts[0]?.scale;
  const size = ({ value }: Named): number => (Number.isFinite(value) ? Math.abs(value) : 0);
  const largest = all.sort((one, other) => size(other) - size(one)).slice(0, most);
  return (
    <>
      <Bars
        bars={largest}
        {...(scale && { lengthOf: (value: number) => Math.min(1, Math.abs(value) / (scale.most || 1)) })}
      />
      {all.length > most && <p class="muted small">The largest of {all.length}.</p>}
    </>
  );
}

/** Whether an image can lie below a picture of this shape: their sides have one ratio, but for five percent. */
function fits(shape: readonly number[], { height, width }: Pixels): boolean {
  const [rows = 1, columns = 1] = shape.slice(-2);
  return Math.abs(rows * width - height * columns) <= 0.05 * height * columns;
}

/** Returns what an answer knows of an input: its image, the names of its features, its numbers. */
export function inputAt(asked: Exchange, row: number, name: string): Pick<Shown, "under" | "names" | "beside"> {
  const tensor = tensorsIn(asked.question)[name];
  return {
    under: backgroundOf(asked, row, name),
    names: asked.reply.message.featureNames.find(({ input }) => input === name)?.names ?? [],
    beside: tensor && exampleOf(asked, tensor, row).values,
  };
}

/** The most pixels of a side of an image that is shown below a picture. */
const MOST_SIDE = 512;

/** Returns the image file that was sent as an example, as the browser reads it; undefined where there is none. */
export function useFile(given: Example | undefined): Pixels | undefined {
  const isFile = typeof given === "object" && given.mediaType.startsWith("image/");
  return useLoaded(() => (isFile ? imageIn(given) : undefined), [given]).value; // a browser reads fewer formats than the server
}

async function imageIn({ data, mediaType }: FileExample): Promise<Pixels> {
  const image = await createImageBitmap(new Blob([Uint8Array.from(data)], { type: mediaType }));
  const factor = Math.min(1, MOST_SIDE / Math.max(image.width, image.height));
  const side = (length: number): number => Math.max(1, Math.round(factor * length));
  const [width, height] = [side(image.width), side(image.height)];
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context?.drawImage(image, 0, 0, width, height);
  const pixels = context?.getImageData(0, 0, width, height).data ?? new Uint8ClampedArray(4 * width * height);
  return { pixels, width, height };
}

/** How many pixels of the image lie below one of a map that is smooth, along a side. */
const COARSE = 3;

const START = 0.9;
const OPACITY = { least: 0, most: 1, step: 0.05 };

type OverlayProps = Pick<Shown, "part" | "under" | "scale"> & Readonly<{ label: string; signed: boolean }>;

/**
 * Shows the sum over channels; explanation and image are as large as the larger of them. The image shows through where
 * the sum is small; a map with fewer pixels than the image is smooth, until a person asks for its grid.
 */
function Overlay({ part, under, label, signed, scale: given }: OverlayProps): preact.JSX.Element {
  const [{ opacity, grid }, field] = useFields({ opacity: START, grid: false });
  const { values, shape } = useMemo(() => flattened(part), [part]);
  const scale = useMemo(() => given ?? scaleOf(values, signed, true), [values, signed]);
  const pixels = useMemo(() => (under ? veilOf : pixelsOf)(values, scale), [values, scale, under]);
  const width = shape[1] ?? 1;
  const coarse = under !== undefined && COARSE * width < under.width;
  const over = axisNames(part.shape.length).filter((_, axis) => axis < part.shape.length - 2 && part.shape[axis] !== 1);
  return (
    <div class="overlay">
      <Picture {...{ label, values, width, pixels, under }} opacity={under ? opacity : 1} smooth={coarse && !grid} />
      <p class="small muted extremes">{`${extremesText(values, width)} ${over.length ? `Summed over each ${over.join(" and ")}.` : ""} ${clippedText(values)}`}</p>
      <div class="tools">
        {under && <Slider label="Opacity" kind="opacity small muted" {...OPACITY} {...field("opacity")} />}
        {coarse && <Check label="Grid" {...field("grid")} />}
        <Legend scale={scale} />
      </div>
    </div>
  );
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
  const inputs = Object.entries(inputsOf(asked)).map(
    ([input, tensor]) => [input, exampleOf(asked, tensor, row)] as const,
  );
  return imageFor(name, inputs);
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

/** Returns the tokens that those of a row are compared with, in words; "" for a method without a baseline. */
function againstOf({ texts, baselineTexts }: NonNullable<Attribution["message"]["tokens"]>, row: number): string {
  const [own, start] = [texts, baselineTexts].map((rows) => rows[row]?.tokens ?? []) as [string[], string[]];
  const few = (names: readonly string[]): string => {
    const different = [...new Set(names)];
    return [...different.slice(0, FEW), ...(different.length > FEW ? [`${different.length - FEW} more`] : [])].join(
      ", ",
    );
  };
  if (start.length === 0) return "";
  const others = start.filter((text, index) => text !== own[index]);
  const kept = start.filter((text, index) => text === own[index]);
  return `Against ${few(others) || "itself"}${others.length && kept.length ? `; kept: ${few(kept)}` : ""}.`;
}

/** The most tokens of a baseline that are named. */
const FEW = 3;

interface TokensProps {
  readonly texts: readonly string[];
  readonly values: ArrayLike<number>;
  /** What the tokens are compared with, in words. */
  readonly against?: string;
  /** The scale of the colours, if not their own. */
  readonly scale?: Scale | undefined;
  /** Tries what happens without a token. */
  readonly onChoose?: (index: number) => void;
}

/** Shows the tokens without their padding; each has its number as a title, and below it for those who cannot point. */
export function Tokens({
  texts,
  values,
  against,
  onChoose,
  scale = scaleOf(values, true),
}: TokensProps): preact.JSX.Element {
  const Tag = onChoose ? "button" : "span";
  const pixels = pixelsOf(values, scale);
  return (
    <>
      <ol class="tokens">
        {texts.slice(0, unpaddedLength(texts, values)).map((text, index) => {
          const value = short(values[index] ?? NaN);
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
      {against && (
        <p class="muted small">
          <bdi>{against}</bdi>
        </p>
      )}
      <Legend scale={scale} />
    </>
  );
}

function isDark(red = 0, green = 0, blue = 0): boolean {
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}
