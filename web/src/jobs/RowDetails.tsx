/** One row of a job: what was stored about it, beside the live model's answer to the same question. */

import type { Model, ModelDetail, Question } from "@cutaway/client";
import { useState } from "preact/hooks";
import { predictionText } from "../ask/History.js";
import { numbers } from "../ask/arrays.js";
import { startOf } from "../ask/start.js";
import { Figures, Tokens } from "../explanations/Values.js";
import { ask, choose, draft, type Draft, type Exchange, fromText, go, model, models, since } from "../state/index.js";
import { Button, Facts, percent, short, signed, VerdictBadge } from "../ui/index.js";
import { type Cells, cellsOf, columnsOf, type JobFolder, type Manifest, tensorIn, useCells } from "./folder.js";
import { type JobRow, type Outcome, shownColumns } from "./rows.js";
import { shownIn } from "./Cards.js";

/** Shows the row. */
export function RowDetails({ folder, row }: { folder: JobFolder; row: JobRow }): preact.JSX.Element {
  const { cells, failure = row.problem } = useCells(row.line, shownColumns(folder));
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
      {folder.manifest.excerpt ? (
        <a class="small" href={`#row-${row.number}`}>
          Link to this row
        </a>
      ) : (
        <Live folder={folder} row={row} />
      )}
      <div class="explanations">
        {cells && row.outcomes.map((outcome) => <Stored key={outcome.attribution} {...{ folder, cells, outcome }} />)}
      </div>
    </section>
  );
}

function factsOf({ manifest }: JobFolder, row: JobRow): (readonly [string, string | undefined])[] {
  const { label, prediction, probability, value, residual, line } = row;
  const target = value === undefined ? line.cells["targets"] : undefined;
  return [
    ["label", label || undefined],
    ["prediction", (probability === undefined ? prediction : `${prediction}, ${percent(probability)}`) || undefined],
    ["residual", residual === undefined ? undefined : `${signed(residual)}, the label minus the prediction`],
    ["explained", target == null ? undefined : (manifest.labels[Number(target)] ?? String(Number(target)))],
  ];
}

/** Scrolls where it is not in sight. */
function bringIntoView(drawn: HTMLElement | null): void {
  const { top = 0, bottom = 1 } = drawn?.getBoundingClientRect() ?? {};
  if (top > innerHeight || bottom < 0) drawn?.scrollIntoView();
}

type StoredProps = Readonly<{ folder: JobFolder; cells: Cells; outcome: Outcome }>;

/** One attribution of the row as it was stored: over the tokens of a text, or in a figure for each input or layer. */
function Stored({ folder, cells, outcome: { attribution, verdict, reason, error } }: StoredProps): preact.JSX.Element {
  const [column] = columnsOf(folder, ["token_attribution"], attribution);
  const sums = column && tensorIn(cells, column);
  const texts = cells["tokens"] as readonly string[] | undefined;
  const parts = columnsOf(folder, ["attribution"], attribution).flatMap((each) => shownIn(folder, cells, each) ?? []);
  return (
    <article class="explanation">
      <div class="tools">
        <h3 dir="auto">{attribution}</h3>
        <VerdictBadge verdict={verdict} />
      </div>
      {texts && sums ? <Tokens texts={texts} values={sums.values} /> : <Figures label={attribution} parts={parts} />}
      {!(texts && sums) && parts.length === 0 && <p class="muted">Nothing was stored.</p>}
      {reason && (
        <p class="small">
          <bdi>{reason}</bdi> <span class="muted">(error {short(error)})</span>
        </p>
      )}
    </article>
  );
}

/** Returns the served model that the job was about: of its version, if that is served; undefined if there is none. */
function servedOf({ model, version }: Manifest): Model | undefined {
  const same = models.value.filter((served) => served.model === model);
  return same.find((served) => served.version === version) ?? same.at(-1);
}

/**
 * Asks the live model what the job asked about a row, and nothing else.
 *
 * @returns the answer; undefined if there is none, or a newer call came before it.
 */
async function askLive(served: Model, folder: JobFolder, { line }: JobRow): Promise<Exchange | undefined> {
  const name = served.name.replace(/^models\//, "");
  if (model.value?.model?.name !== served.name) await choose(name);
  const detail = model.value;
  if (detail?.model?.name !== served.name) return undefined;
  const cells = await cellsOf(line, columnsOf(folder, ["input"]));
  const inputs = inputsIn(folder, cells, detail);
  draft.value = { ...(questionOf(folder.manifest, line.cells) ?? startOf(detail, name)), model: name, inputs };
  return ask();
}

/** Returns the job's request with the target of a row, without the condition of its explanations; undefined if the
 * folder has no request. */
function questionOf({ question = {}, job }: Manifest, cells: Cells): Draft | undefined {
  if (Object.keys(question).length === 0) return undefined;
  const draft: Draft = { ...fromText(JSON.stringify(question)), attributionErrorsInPlace: true };
  delete draft.explainIf;
  const target = cells["targets"];
  if (job.target === "label" && target != null)
    draft.target = { kind: { case: "classIndex", value: { indices: [BigInt(Number(target))] } } };
  return draft;
}

/** Returns the inputs that a row was computed from, as far as the model has inputs of these names. */
function inputsIn(folder: JobFolder, cells: Cells, { inputs }: ModelDetail): Question["inputs"] {
  const columns = columnsOf(folder, ["input"]);
  const raw = columns.find(({ input }) => input === undefined);
  const data = raw && cells[raw.name];
  if (typeof data === "string") return [data];
  if (data instanceof Uint8Array) return [{ data: Uint8Array.from(data), mediaType: raw?.["media_type"] ?? "" }];
  const named = columns.flatMap((column) => {
    const part = tensorIn(cells, column);
    const spec = inputs.find(({ name }) => name === column["input"]);
    if (!part || !spec) return [];
    return [[spec.name, numbers(Array.from(part.values), [1, ...part.shape], spec.dataType)] as const];
  });
  return Object.fromEntries(named);
}

const NO_INPUTS =
  "The job kept no inputs, so the model cannot be asked about the row: run it with “output: {keep_inputs: true}”.";

/** Asks it, and leads to what is inside; or says why it cannot be asked. */
function Live({ folder, row }: { folder: JobFolder; row: JobRow }): preact.JSX.Element {
  const [answer, setAnswer] = useState<Exchange>();
  const { manifest } = folder;
  const served = servedOf(manifest);
  if (!served)
    return <p class="muted">{`This server has no model ${manifest.model}: it cannot be asked about the row.`}</p>;
  if (columnsOf(folder, ["input"]).length === 0) return <p class="muted">{NO_INPUTS}</p>;
  if (row.problem) return <p class="muted">The job could not use this row, and kept no input of it.</p>;
  const ask = async (): Promise<void> => setAnswer(await askLive(served, folder, row));
  const waits = since.value !== undefined;
  const same = answer?.reply.message.provenance?.weightsSha256 === manifest.weights_sha256;
  return (
    <div class="actions">
      <Button text="Ask the live model" class="primary" disabled={waits} onClick={() => void ask()} />
      {answer && (
        <>
          <span role="status">
            It says <bdi class="short">{predictionText(answer)}</bdi>
            {same ? ", with the weights of the job." : ". Its weights are not those of the job."}
          </span>
          <Button text="Look inside" onClick={() => go("explanations")} />
        </>
      )}
    </div>
  );
}
