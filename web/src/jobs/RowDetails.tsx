/** One row of a job: what was stored about it, beside the live model's answer to the same question. */

import { imageFor } from "../explanations/backgrounds.js";
import { Tokens } from "../explanations/Tokens.js";
import { Figure } from "../explanations/Values.js";
import { VerdictBadge } from "../ui/verdicts.js";
import { Facts } from "../ui/parts.js";
import type { Part } from "../measures/numbers.js";
import { percent, short } from "../ui/text.js";
import { type Cells, type Column, columnsOf, type JobFolder, tensorIn, useCells } from "./folder.js";
import { Live } from "./Live.js";
import { type Row, text, verdictOf } from "./rows.js";

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
        <p class="problem" dir="auto">
          {failure}
        </p>
      )}
      <Facts facts={factsOf(folder, row)} />
      <Live folder={folder} row={row} />
      <div class="explanations">
        {cells && [...names].map((each) => <Stored key={each} {...{ folder, row, cells }} attribution={each} />)}
      </div>
    </section>
  );
}

function factsOf({ manifest }: JobFolder, { label, prediction, probability, line }: Row): [string, string][] {
  const target = line.cells["targets"];
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

type StoredProps = Readonly<{ folder: JobFolder; row: Row; cells: Cells; attribution: string }>;

/** One attribution of the row as it was stored. */
function Stored({ folder, row, cells, attribution }: StoredProps): preact.JSX.Element {
  const [verdict, reason, error] = ["verdict", "reason", "largest_error"].map((kind) => {
    const [column] = columnsOf(folder, [kind], attribution);
    return column && row.line.cells[column.name];
  });
  return (
    <article class="explanation">
      <div class="tools">
        <h3 dir="auto">{attribution}</h3>
        <VerdictBadge verdict={verdictOf(verdict)} />
      </div>
      <Values {...{ folder, cells, attribution }} />
      {text(reason) && (
        <p class="small">
          <bdi>{text(reason)}</bdi> <span class="muted">(error {short(Number(error))})</span>
        </p>
      )}
    </article>
  );
}

/** Its values: over the tokens of a text, or in a figure for each input or layer. */
function Values({ folder, cells, attribution }: Omit<StoredProps, "row">): preact.JSX.Element {
  const tensors = (kind: string, of?: string): (readonly [Column, Part])[] =>
    columnsOf(folder, [kind], of).flatMap((column) => {
      const part = tensorIn(cells, column);
      return part ? [[column, part] as const] : [];
    });
  const [sums] = tensors("token_attribution", attribution);
  const texts = cells["tokens"] as readonly string[] | undefined;
  if (texts && sums) return <Tokens texts={texts} values={sums[1].values} />;
  const inputs = tensors("input").map(([{ input = "" }, part]) => [input, part] as const);
  const figures = tensors("attribution", attribution).map(([{ name, input = "", layer = "" }, part]) => (
    <Figure
      key={name}
      name={input || layer}
      label={name}
      part={part}
      under={imageFor(input, inputs)}
      names={folder.manifest.feature_names?.[input] ?? []}
    />
  ));
  return figures.length ? <>{figures}</> : <p class="muted">Nothing was stored.</p>;
}
