/** One row of a job: what was stored about it, beside the live model's answer to the same question. */

import { isImage, pictureOf } from "../explanations/backgrounds.js";
import { Tokens } from "../explanations/Tokens.js";
import { Figure } from "../explanations/Values.js";
import { VerdictBadge, shownAs } from "../explanations/verdicts.js";
import { Facts } from "../app/parts.js";
import { percent, short } from "../pictures/text.js";
import { type Cells, columnsOf, type JobFolder, tensorIn, useCells } from "./folder.js";
import { Live } from "./Live.js";
import { type Row, verdictOf } from "./rows.js";

const TENSORS = ["attribution", "token_attribution", "input", "tokens"];

/** Shows the row. */
export function RowDetails({ folder, row }: { folder: JobFolder; row: Row }): preact.JSX.Element {
  const { cells, failure = row.problem } = useCells(row.line, columnsOf(folder, TENSORS));
  const names = new Set(columnsOf(folder, ["attribution"]).map(({ attribution = "" }) => attribution));
  return (
    <section class="panel one-row" aria-labelledby="one-row" ref={bringIntoView}>
      <h2 id="one-row">
        Row <bdi class="short">{row.id || row.number}</bdi>
      </h2>
      {failure && (
        <p class="problem">
          <bdi>{failure}</bdi>
        </p>
      )}
      <Facts facts={factsOf(folder, row)} />
      <Live folder={folder} row={row} />
      <div class="explanations">
        {cells && [...names].map((name) => <Stored key={name} {...{ folder, row, cells, name }} />)}
      </div>
    </section>
  );
}

function factsOf({ manifest }: JobFolder, { label, prediction, probability, line }: Row): [string, string][] {
  const target = line.cells["target"];
  const facts: [string, string][] = [
    ["label", label],
    ["prediction", probability === undefined ? prediction : `${prediction}, ${percent(probability)}`],
    ["explained", target == null ? "" : (manifest.labels[Number(target)] ?? String(Number(target)))],
  ];
  return facts.filter(([, value]) => value !== "");
}

/** Scrolls where there is no room beside the table. */
function bringIntoView(drawn: HTMLElement | null): void {
  if (drawn && drawn.getBoundingClientRect().top > innerHeight) drawn.scrollIntoView();
}

interface StoredProps {
  readonly folder: JobFolder;
  readonly row: Row;
  readonly cells: Cells;
  /** Of the attribution. */
  readonly name: string;
}

/** One attribution of the row as it was stored. */
function Stored({ folder, row, cells, name }: StoredProps): preact.JSX.Element {
  const { cells: stored } = row.line;
  const outcome = (kind: string): unknown => columnsOf(folder, [kind], name).map((each) => stored[each.name] ?? "")[0];
  const [verdict, reason] = [outcome("verdict"), outcome("reason")];
  return (
    <article class="explanation">
      <div class="tools">
        <h3>
          <bdi>{name}</bdi>
        </h3>
        {verdict !== undefined && <VerdictBadge shown={shownAs(verdictOf(verdict))} />}
      </div>
      <Values {...{ folder, cells, name }} />
      {typeof reason === "string" && reason !== "" && (
        <p class="small">
          <bdi>{reason}</bdi> <span class="muted">(error {short(Number(outcome("largest_error")))})</span>
        </p>
      )}
    </article>
  );
}

/** The values of an attribution: over the tokens of a text, or a figure for each input or layer. */
function Values({ folder, cells, name }: Omit<StoredProps, "row">): preact.JSX.Element {
  const texts = cells["tokens"] as readonly string[] | undefined;
  const [values] = columnsOf(folder, ["token_attribution"], name).map((column) => tensorIn(cells, column)?.values);
  if (texts && values) return <Tokens texts={texts} values={values} />;
  const images = columnsOf(folder, ["input"]).flatMap((column) => {
    const part = tensorIn(cells, column);
    return part && isImage(part) ? [{ input: column["input"], picture: pictureOf(part) }] : [];
  });
  return (
    <>
      {columnsOf(folder, ["attribution"], name).map((column) => {
        const { input = "", layer = "" } = column;
        const part = tensorIn(cells, column);
        if (part === undefined) return <p class="muted">Nothing was stored.</p>;
        return (
          <Figure
            key={column.name}
            name={input || layer}
            label={column.name}
            part={part}
            under={images.find((each) => !input || each.input === input)?.picture}
            names={folder.manifest.feature_names?.[input] ?? []}
          />
        );
      })}
    </>
  );
}
