/** Rows side by side, each with its pictures, texts and strongest features in small. */

import { Verdict } from "@cutaway/client";
import { sort } from "d3-array";
import { Figure, imageFor, isImage, isVector, pictureOf, type Shown, Tokens, Vectors } from "../explanations/Values.js";
import { flattened, layoutOf, type Part } from "../measures/index.js";
import { Canvas } from "../pictures/Picture.js";
import { areSigned, pixelsOf, type Scale, scaleOf } from "../pictures/colours.js";
import { percent, short, signed, VerdictBadge } from "../ui/index.js";
import { type Cells, type Column, columnsOf, type JobFolder, tensorIn, useCells } from "./folder.js";
import { chosen, filtered, ORDERS } from "./query.js";
import { attributionsOf, type JobRow, pictured, shownColumns } from "./rows.js";

/** The strongest features of a card. */
const MOST_FEATURES = 6;

/** Shows the rows that the filters leave. */
export function Cards({ folder, rows }: { folder: JobFolder; rows: readonly JobRow[] }): preact.JSX.Element {
  return (
    <div class={columnsOf(folder, ["tokens"]).length ? "cards texts" : "cards"}>
      {rows.map((row) => filtered.value.includes(row) && <Card key={row.number} folder={folder} row={row} />)}
    </div>
  );
}

function Card({ folder, row }: { folder: JobFolder; row: JobRow }): preact.JSX.Element {
  const { cells, failure } = useCells(row.line, shownColumns(folder));
  const doubtful = row.outcomes.filter(({ verdict }) => verdict && verdict !== Verdict.AGREES);
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
        {doubtful.map(({ attribution, verdict }) => (
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
  const shown = pictured(folder).flatMap((column) => {
    const own = shownIn(folder, cells, column);
    return own ? [{ ...own, attribution: column["attribution"], title: titleOf(folder, column) }] : [];
  });
  const isSeries = ({ part: { shape }, names }: Shown): boolean => layoutOf(shape, names).kind === "series";
  const pictures = shown.filter((each) => !isVector(each) && !isSeries(each));
  const tokens = cells["tokens"] as readonly string[] | null | undefined;
  return (
    <>
      <div class="miniatures">
        {inputsIn(folder, cells).map(
          ([input, part]) => isImage(part) && <Miniature key={input} title={input} image={pictureOf(part)} />,
        )}
        {pictures.map(({ title, part }) => (
          <HeatMiniature key={title} {...{ title, part }} />
        ))}
      </div>
      {shown.filter(isSeries).map(({ title, ...each }) => (
        <Figure key={title} {...each} name={title} label={title} />
      ))}
      {[...attributionsOf(folder).keys()].map((name) => {
        const parts = shown.filter((each) => each.attribution === name && isVector(each));
        return (
          parts.length > 0 && (
            <figure key={name}>
              <figcaption class="muted small">{name}</figcaption>
              <Vectors parts={parts} most={MOST_FEATURES} />
            </figure>
          )
        );
      })}
      {tokens &&
        columnsOf(folder, ["token_attribution"]).map((column) => (
          <figure key={column.name}>
            <figcaption class="muted small">{column["attribution"]}</figcaption>
            <Tokens texts={tokens} values={tensorIn(cells, column)?.values ?? []} />
          </figure>
        ))}
    </>
  );
}

/** Returns the inputs that were kept of a row, by name. */
function inputsIn(folder: JobFolder, cells: Cells): (readonly [string, Part])[] {
  return columnsOf(folder, ["input"]).flatMap((column) => {
    const part = tensorIn(cells, column);
    return part ? [[column["input"] ?? "", part] as const] : [];
  });
}

/** Returns an attribution of a row with what is known of its input; undefined if the row has none. */
export function shownIn(folder: JobFolder, cells: Cells, column: Column): Shown | undefined {
  const { input = "", layer = "" } = column;
  const part = tensorIn(cells, column);
  const inputs = inputsIn(folder, cells);
  return (
    part && {
      name: input || layer,
      part,
      under: imageFor(input, inputs),
      beside: inputs.find(([each]) => input !== "" && each === input)?.[1].values,
      names: layer ? undefined : (folder.manifest.feature_names?.[input] ?? []),
    }
  );
}

/** Returns what an attribution is called: with its input or layer, if it has several. */
export function titleOf(folder: JobFolder, { name, attribution = "" }: Column): string {
  return columnsOf(folder, ["attribution"], attribution).length > 1 ? name : attribution;
}

type HeatProps = Readonly<{ title: string; part: Part; scale?: Scale; note?: string }>;

/** Numbers as a small picture, the sum over channels; in a scale of its own, or in that of others beside it. */
export function HeatMiniature({ title, part, scale, note }: HeatProps): preact.JSX.Element {
  const { values, shape } = flattened(part);
  const [height = 1, width = 1] = shape;
  const own = scale ?? scaleOf(values, areSigned(title, values));
  const image = { pixels: pixelsOf(values, own), height, width };
  return <Miniature {...{ title, image }} note={note ?? `± ${short(own.most, 2)}`} />;
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

/** Lists of rows that are looked at first: their titles, their orders, and which rows are in them. */
const LISTS: readonly (readonly [string, keyof typeof ORDERS, (row: JobRow) => boolean])[] = [
  ["Furthest from the label", "largest residual first", ({ residual }) => residual !== undefined],
  ["Highest predictions", "highest prediction first", ({ value = NaN }) => !Number.isNaN(value)],
  ["Lowest predictions", "lowest prediction first", ({ value = NaN }) => !Number.isNaN(value)],
  ["Most confident in another class than the label", "most probable first", ({ wrong }) => wrong],
  ["Least confident", "least probable first", ({ probability }) => probability !== undefined],
  ["Most confident", "most probable first", ({ probability }) => probability !== undefined],
  ["The first rows", "as in the data", ({ prediction }) => !prediction],
];

/** Returns the rows that are looked at first, `most` in each list: most confident against their label, least and most
 * confident; of numbers those furthest from their label, the highest and the lowest. */
export function exampleLists(rows: readonly JobRow[], most: number): readonly (readonly [string, readonly JobRow[]])[] {
  const lists = LISTS.map(([title, order, isIn]) => {
    const own = rows.filter((row) => !row.problem && isIn(row));
    return [title, sort(own, ORDERS[order]).slice(0, most)] as const;
  });
  return lists.filter(([, list]) => list.length > 0);
}

/** A row's id, which leads to the row. */
export function RowLink({ row }: { row: JobRow }): preact.JSX.Element {
  return (
    <button class="quiet link" aria-pressed={row === chosen.value} onClick={() => (chosen.value = row)}>
      <bdi class="short">{row.id || row.number}</bdi>
    </button>
  );
}
