/** One row of a job: what was stored about it, beside the live model's answer to the same question. */

import { isImage, pictureOf } from "../explanations/backgrounds.js";
import { Tokens } from "../explanations/Tokens.js";
import { Figure } from "../explanations/Values.js";
import { VerdictBadge, shownAs } from "../explanations/verdicts.js";
import { short } from "../pictures/text.js";
import { type Cells, columnsOf, type JobFolder, type Manifest, tensorIn } from "./folder.js";
import { Live } from "./Live.js";
import { type Row, verdictOf } from "./rows.js";
import { useCells } from "./useCells.js";

const TENSORS = ["attribution", "token_attribution", "input", "tokens"];

/** Shows the row. */
export function RowDetails({ folder, row }: { folder: JobFolder; row: Row }): preact.JSX.Element {
  const { manifest } = folder;
  const { cells, failure = row.problem } = useCells(row.line, columnsOf(manifest, TENSORS));
  const columns = columnsOf(manifest, ["attribution"]);
  const names = new Set(columns.map((column) => manifest.columns[column]?.["attribution"] ?? ""));
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
      <Live folder={folder} row={row} />
      <div class="explanations">
        {cells && [...names].map((name) => <Stored key={name} {...{ manifest, row, cells, name }} />)}
      </div>
    </section>
  );
}

/** Scrolls where there is no room beside the table. */
function bringIntoView(drawn: HTMLElement | null): void {
  if (drawn && drawn.getBoundingClientRect().top > innerHeight) drawn.scrollIntoView();
}

interface StoredProps {
  readonly manifest: Manifest;
  readonly row: Row;
  readonly cells: Cells;
  /** Of the attribution. */
  readonly name: string;
}

/** One attribution of the row as it was stored. */
function Stored({ manifest, row, cells, name }: StoredProps): preact.JSX.Element {
  const column = (kind: string): string =>
    columnsOf(manifest, [kind]).find((each) => manifest.columns[each]?.["attribution"] === name) ?? "";
  const { cells: outcome } = row.line;
  const reason = outcome[column("reason")];
  return (
    <article class="explanation">
      <div class="tools">
        <h3>
          <bdi>{name}</bdi>
        </h3>
        {column("verdict") && <VerdictBadge shown={shownAs(verdictOf(outcome[column("verdict")]))} />}
      </div>
      <StoredValues {...{ manifest, row, cells, name }} tokens={cells[column("token_attribution")]} />
      {typeof reason === "string" && reason !== "" && (
        <p class="small">
          <bdi>{reason}</bdi> <span class="muted">(error {short(Number(outcome[column("largest_error")]))})</span>
        </p>
      )}
    </article>
  );
}

function StoredValues({ manifest, cells, name, tokens }: StoredProps & { tokens: unknown }): preact.JSX.Element {
  const texts = cells["tokens"] as readonly string[] | undefined;
  const values = tensorIn(tokens, {})?.values;
  if (texts && values) return <Tokens texts={texts} values={values} />;
  const columns = columnsOf(manifest, ["attribution"]).filter(
    (each) => manifest.columns[each]?.["attribution"] === name,
  );
  return (
    <>
      {columns.map((column) => {
        const { input = "", layer = "", ...about } = manifest.columns[column] ?? {};
        const part = tensorIn(cells[column], about);
        if (part === undefined) return <p class="muted">Nothing was stored.</p>;
        const names = manifest.feature_names?.[input] ?? [];
        return (
          <Figure
            key={column}
            name={input || layer}
            label={column}
            part={part}
            under={imageIn(manifest, cells)}
            names={names}
          />
        );
      })}
    </>
  );
}

function imageIn(manifest: Manifest, cells: Cells): ReturnType<typeof pictureOf> | undefined {
  const images = columnsOf(manifest, ["input"]).map((name) => tensorIn(cells[name], manifest.columns[name] ?? {}));
  const image = images.find((each) => each && isImage(each));
  return image && pictureOf(image);
}
