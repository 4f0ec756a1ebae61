/** Rows side by side, each with its pictures, texts and strongest features in small. */

import { Verdict } from "@cutaway/client";
import { Figures, imageFor, Tokens } from "../explanations/Values.js";
import { flattened, layoutOf } from "../measures/layout.js";
import type { Part } from "../measures/numbers.js";
import { Bars } from "../pictures/Bars.js";
import { Canvas } from "../pictures/Canvas.js";
import { areSigned, pixelsOf, type Scale, scaleOf } from "../pictures/colours.js";
import { percent, short, signed } from "../ui/text.js";
import { VerdictBadge } from "../ui/verdicts.js";
import { type Cells, type Column, columnsOf, type JobFolder, sizesOf, tensorIn, useCells } from "./folder.js";
import { filtered, type JobRow, pictured, shownColumns, verdictOf } from "./rows.js";
import { RowLink } from "./RowLink.js";

/** The strongest features of a card. */
const MOST_FEATURES = 6;

/** Shows the rows that the filters leave. */
export function Cards({ folder, rows }: { folder: JobFolder; rows: readonly JobRow[] }): preact.JSX.Element {
  return (
    <div class={columnsOf(folder, ["tokens"]).length ? "cards texts" : "cards"}>
      {rows
        .filter((row) => filtered.value.includes(row))
        .map((row) => (
          <Card key={row.number} folder={folder} row={row} />
        ))}
    </div>
  );
}

function Card({ folder, row }: { folder: JobFolder; row: JobRow }): preact.JSX.Element {
  const { cells, failure } = useCells(row.line, shownColumns(folder));
  const doubtful = columnsOf(folder, ["verdict"]).flatMap(({ name, attribution = "" }) => {
    const verdict = verdictOf(row.line.cells[name]);
    return verdict && verdict !== Verdict.AGREES ? [[attribution, verdict] as const] : [];
  });
  return (
    <article class="card" data-row={row.number}>
      <div class="tools">
        <RowLink row={row} />
        {row.prediction && <bdi class="short">{row.prediction}</bdi>}
        {row.probability !== undefined && <span class="muted">{percent(row.probability)}</span>}
        {row.label && (
          <span class="muted">
            labelled <bdi class="short">{row.label}</bdi>
          </span>
        )}
        {row.residual !== undefined && <span class="muted">residual {signed(row.residual)}</span>}
        {doubtful.map(([attribution, verdict]) => (
          <span key={attribution}>
            <bdi class="muted">{attribution}</bdi> <VerdictBadge verdict={verdict} brief />
          </span>
        ))}
      </div>
      {failure && <p class="problem">{failure}</p>}
      {cells && <Miniatures folder={folder} cells={cells} />}
    </article>
  );
}

/** The input of a row, and each of its attributions. */
function Miniatures({ folder, cells }: { folder: JobFolder; cells: Cells }): preact.JSX.Element {
  const tensors = (columns: readonly Column[]): [Column, Part][] =>
    columns.flatMap((column) => {
      const part = tensorIn(cells, column);
      return part ? [[column, part] as [Column, Part]] : [];
    });
  const inputs = tensors(columnsOf(folder, ["input"]));
  const attributions = tensors(pictured(folder));
  const vectors = attributions.filter(([, part]) => isVector(part));
  const tokens = cells["tokens"] as readonly string[] | null | undefined;
  return (
    <>
      <div class="miniatures">
        {inputs.map(([{ name, input = "" }, part]) => {
          const image = imageFor(input, [[input, part]]);
          return image && <Miniature key={name} title={input} image={image} />;
        })}
        {attributions
          .filter(([column, part]) => !isVector(part) && !isSeries(folder, column, part))
          .map(([column, part]) => (
            <HeatMiniature key={column.name} title={titleOf(folder, column)} part={part} />
          ))}
      </div>
      {attributions
        .filter(([column, part]) => isSeries(folder, column, part))
        .map(([column, part]) => (
          <Figures
            key={column.name}
            label={titleOf(folder, column)}
            parts={[{ name: titleOf(folder, column), part, ...inputOf(folder, column, inputs) }]}
          />
        ))}
      {attributionsIn(vectors).map((name) => (
        <figure key={name}>
          <figcaption class="muted small">{name}</figcaption>
          <Bars
            bars={strongest(
              folder,
              vectors.filter(([{ attribution }]) => attribution === name),
              inputs,
            )}
          />
        </figure>
      ))}
      {tokens &&
        tensors(columnsOf(folder, ["token_attribution"])).map(([column, part]) => (
          <figure key={column.name}>
            <figcaption class="muted small">{column["attribution"]}</figcaption>
            <Tokens texts={tokens} values={part.values} />
          </figure>
        ))}
    </>
  );
}

/** Returns what a row has of the input that a column is about: the names of its features, its numbers. */
function inputOf(
  { manifest }: JobFolder,
  { input, layer }: Column,
  inputs: readonly [Column, Part][],
): { names: readonly string[] | undefined; beside: Part["values"] | undefined } {
  return {
    names: layer ? undefined : (manifest.feature_names?.[input ?? ""] ?? []),
    beside: inputs.find(([column]) => input && column["input"] === input)?.[1].values,
  };
}

function isSeries(folder: JobFolder, column: Column, { shape }: Part): boolean {
  return layoutOf(shape, inputOf(folder, column, []).names).kind === "series";
}

function isVector({ shape }: Part): boolean {
  const layout = layoutOf(shape);
  return layout.kind === "rows" && layout.rows === 1;
}

/** Returns what an attribution is called: with its input or layer, if it has several. */
export function titleOf(folder: JobFolder, { name, attribution = "" }: Column): string {
  return columnsOf(folder, ["attribution"], attribution).length > 1 ? name : attribution;
}

/** Returns the names of attributions that have one of these tensors. */
function attributionsIn(tensors: readonly [Column, Part][]): string[] {
  return [...new Set(tensors.map(([{ attribution = "" }]) => attribution))];
}

/** Returns the names of the features that a column is about; of a number that of its input. */
export function namesOf({ manifest }: JobFolder, column: Column): readonly string[] {
  const { input = "" } = column;
  return manifest.feature_names?.[input] ?? (sizesOf(column).length === 0 ? [input] : []);
}

/** Returns the features of a row with the largest of several attributions, each with its value if it is known. */
function strongest(
  folder: JobFolder,
  tensors: readonly [Column, Part][],
  inputs: readonly [Column, Part][],
): { name: string; value: number; about?: string }[] {
  const size = (value: number): number => (Number.isFinite(value) ? Math.abs(value) : 0);
  return tensors
    .flatMap(([column, { values }]) => {
      const { beside: own } = inputOf(folder, column, inputs);
      const [names, known] = [namesOf(folder, column), own?.length === values.length ? own : undefined];
      const several = tensors.length > 1 ? `${column["input"] ?? ""} ` : "";
      return Array.from(values, (value, index) => ({
        name: names[index] ?? `${several}[${index}]`,
        value,
        ...(known ? { about: short(known[index] ?? Number.NaN) } : {}),
      }));
    })
    .sort((one, other) => size(other.value) - size(one.value))
    .slice(0, MOST_FEATURES);
}

type HeatProps = Readonly<{ title: string; part: Part; scale?: Scale; note?: string }>;

/** Numbers as a small picture, the sum over channels; in a scale of its own, or in that of others beside it. */
export function HeatMiniature({ title, part, scale, note }: HeatProps): preact.JSX.Element {
  const { values, shape } = flattened(part);
  const [height = 1, width = 1] = shape;
  const own = scale ?? scaleOf(values, areSigned(title, values));
  return (
    <Miniature
      title={title}
      image={{ pixels: pixelsOf(values, own), height, width }}
      note={note ?? `± ${short(own.most, 2)}`}
    />
  );
}

type MiniatureProps = Readonly<{ title: string; image: Parameters<typeof Canvas>[0]; note?: string }>;

function Miniature({ title, image, note }: MiniatureProps): preact.JSX.Element {
  return (
    <figure>
      <Canvas {...image} role="img" aria-label={title} />
      <figcaption class="muted small">
        <bdi>{title}</bdi> {note}
      </figcaption>
    </figure>
  );
}

/** Returns the rows that are looked at first: most confident against their label, least and most confident; of numbers
 * those furthest from their label, the highest and the lowest. */
export function exampleLists(rows: readonly JobRow[], most: number): readonly (readonly [string, readonly JobRow[]])[] {
  const good = rows.filter(({ problem }) => !problem);
  const classified = good.filter(({ probability }) => probability !== undefined);
  const surest = classified.toSorted((one, other) => (other.probability ?? 0) - (one.probability ?? 0));
  const unsurest = classified.toSorted((one, other) => (one.probability ?? 0) - (other.probability ?? 0));
  const measured = good.filter(({ value }) => value !== undefined && !Number.isNaN(value));
  const byValue = measured.toSorted((one, other) => (other.value ?? 0) - (one.value ?? 0));
  const sizeOf = ({ residual = 0 }: JobRow): number => Math.abs(residual) || 0;
  const furthest = measured
    .filter(({ residual }) => residual !== undefined)
    .sort((one, other) => sizeOf(other) - sizeOf(one));
  const lists = [
    ["Furthest from the label", furthest],
    ["Highest predictions", byValue],
    ["Lowest predictions", byValue.toReversed()],
    ["Most confident in another class than the label", surest.filter(({ wrong }) => wrong)],
    ["Least confident", unsurest],
    ["Most confident", surest],
    ["The first rows", classified.length + measured.length ? [] : good],
  ] as const;
  return lists.filter(([, list]) => list.length > 0).map(([title, list]) => [title, list.slice(0, most)] as const);
}
