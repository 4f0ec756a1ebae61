/** View 9: the rows that a batch job explained. In a file with a job inside, it is the whole page. */

import { useRef, useState } from "preact/hooks";
import { isImage, pictureOf } from "../explanations/Values.js";
import { sizeOf } from "../measures/index.js";
import { Canvas } from "../pictures/Picture.js";
import { Facts, FileButton, Paged, Panel, percent, Search, Select, signed, Table, VerdictBadge } from "../ui/index.js";
import { Cards, exampleLists } from "./Cards.js";
import { BadRows, Confusion, Findings, LISTED, Outcomes, Provenance, Residuals, shares } from "./Overview.js";
import { RowDetails } from "./RowDetails.js";
import { Features, Layers, Means } from "./Tensors.js";
import {
  type Column,
  columnsOf,
  type JobFolder,
  measuredOf,
  openFolder,
  sizesOf,
  tensorIn,
  useCells,
} from "./folder.js";
import {
  ALL,
  chosen,
  type Filter,
  filtered,
  FILTERS,
  folder,
  inOrder,
  type JobRow,
  orders,
  type Query,
  query,
  rows,
  samples,
  show,
  shown,
} from "./rows.js";
import "./jobs.css";

const UNOPENED =
  "One that cutaway batch run wrote. It is read here; of a row that the live model is asked about, the question is sent.";

/** Shows a folder, or asks for one. */
export function JobsView(): preact.JSX.Element {
  const open = folder.value;
  const { excerpt, model = "", version = "" } = open?.manifest ?? {};
  return (
    <div class="jobs">
      <Panel id="folder" title={excerpt ? `${model} ${version}` : "Results of a job"}>
        {!excerpt && <Opening />}
        {open && <Facts facts={factsOf(open)} />}
        {open && <ExcerptNote folder={open} />}
      </Panel>
      {open && <Job key={open.name} folder={open} />}
    </div>
  );
}

/** What the page shows of a job: all rows together, examples, and every row. */
function Job({ folder }: { folder: JobFolder }): preact.JSX.Element {
  const read = samples.value;
  const sampled = read && !(read instanceof Error) ? { folder, samples: read } : undefined;
  return (
    <>
      <Filters />
      <Outcomes folder={folder} />
      <Findings folder={folder} />
      <Panel id="rows" title="Rows">
        <Ordering />
        <Listed folder={folder} />
      </Panel>
      <Chosen folder={folder} />
      {read === undefined && <p role="status">Reading the tensors…</p>}
      {read instanceof Error && <p class="problem">{read.message}</p>}
      {sampled && <Features {...sampled} />}
      {sampled && <Means {...sampled} />}
      {exampleLists(rows.value, LISTED).map(([title, listed]) => (
        <Panel key={title} id={title.toLowerCase().replaceAll(" ", "-")} title={title}>
          <Cards folder={folder} rows={listed} />
        </Panel>
      ))}
      <Confusion />
      <Residuals />
      {sampled && <Layers {...sampled} />}
      <BadRows folder={folder} />
      <Provenance folder={folder} />
    </>
  );
}

/** The rows that a person chose to see, from the first page on. */
function Listed({ folder }: { folder: JobFolder }): preact.JSX.Element {
  return <RowTable key={JSON.stringify(query.value)} folder={folder} />;
}

/** The row that is looked at, if there is one. */
function Chosen({ folder }: { folder: JobFolder }): preact.JSX.Element | null {
  return chosen.value ? <RowDetails key={chosen.value.number} folder={folder} row={chosen.value} /> : null;
}

function Opening(): preact.JSX.Element {
  const [state, setState] = useState<string | Error>("");
  const latest = useRef<readonly File[]>([]);
  const open = async (files: readonly File[]): Promise<void> => {
    latest.current = files;
    show(undefined);
    setState("Reading…");
    const read = await openFolder(files).catch((failure: unknown) => failure as Error);
    if (latest.current !== files) return; // a newer folder was chosen meanwhile
    setState(read instanceof Error ? read : "");
    if (!(read instanceof Error)) show(read);
  };
  const failed = state instanceof Error;
  return (
    <div class="tools">
      <FileButton accept="" onOpen={(files) => void open(files)}>
        Open a folder
      </FileButton>
      <p class={failed ? "problem" : "muted"} role="status">
        {failed ? state.message : state || folder.value?.name || UNOPENED}
      </p>
    </div>
  );
}

/** Which part of the job the file has. */
function ExcerptNote({ folder: { manifest, lines } }: { folder: JobFolder }): preact.JSX.Element | null {
  const { excerpt } = manifest;
  if (!excerpt) return null;
  const [all, here] = [excerpt.rows, lines.length].map((count) => count.toLocaleString("en"));
  const notes = [
    excerpt.rows < manifest.rows && `The job has not ended: ${all} rows were written.`,
    lines.length < excerpt.rows && `This file has ${here} of ${all} rows: evenly spaced ones, and examples.`,
    excerpt.every > 1 && `Tensors are those of one row in ${excerpt.every}, and of examples.`,
    excerpt.reduced.length > 0 && `Reduced to means of blocks: ${excerpt.reduced.join(", ")}.`,
    `#row-17 at the end of the address leads to row 17.`,
  ];
  return <p class="muted small">{notes.filter(Boolean).join(" ")}</p>;
}

/** What all rows, in the table and among the examples, are filtered by. */
function Filters(): preact.JSX.Element {
  const { filters } = query.value;
  const choices = (Object.keys(FILTERS) as Filter[]).map((name) => {
    const values = inOrder(rows.value.map(FILTERS[name]).filter(Boolean));
    const choose = (value: string): Query => alterQuery({ filters: { ...filters, [name]: value } });
    const shown = { label: name, of: [["", "all"] as const, ...values], value: filters[name] ?? "", onChange: choose };
    return values.length > 1 && <Select key={name} {...shown} />;
  });
  return (
    <div class="tools filters">
      {choices}
      <span class="muted">
        {filtered.value.length.toLocaleString("en")} of {rows.value.length.toLocaleString("en")} rows
      </span>
      {query.value !== ALL && (
        <button class="quiet" onClick={() => (query.value = ALL)}>
          Show all
        </button>
      )}
    </div>
  );
}

const alterQuery = (parts: Partial<Query>): Query => (query.value = { ...query.value, ...parts });

function Ordering(): preact.JSX.Element {
  const { order, text } = query.value;
  return (
    <div class="tools">
      <Select label="Order" of={orders.value} value={order} onChange={(name) => alterQuery({ order: name })} />
      <Search
        label="Search: an id, a label or a prediction"
        words={["row", "rows"]}
        value={text}
        found={shown.value.length}
        onChange={(sought) => alterQuery({ text: sought })}
      />
    </div>
  );
}

function factsOf(open: JobFolder): (readonly [string, string | undefined])[] {
  const { manifest, lines } = open;
  const [all, read] = [manifest.rows, lines.length].map((count) => count.toLocaleString("en"));
  const { data = "" } = manifest.job;
  const path = typeof data === "string" ? data : data.path;
  return [
    ["model", `${manifest.model} ${manifest.version}`],
    ["rows", all === read ? `${all}` : `${read} of ${all}`],
    ["data", path.split("/").at(-1) || undefined],
    ["bad rows", rows.value.filter(({ problem }) => problem).length.toLocaleString("en")],
    ...shares(),
  ];
}

const PAGE = 25;
const LARGEST_PREVIEW = 4096;
const MOST_TOKENS = 16;

/** Shows the rows that a person chose to see, each with its input where that is small. */
function RowTable({ folder }: { folder: JobFolder }): preact.JSX.Element {
  const preview = previewOf(folder);
  const labelled = columnsOf(folder, ["label"]).length > 0;
  const measured = measuredOf(folder).length > 0;
  const beside = measured ? columnsOf(folder, ["residual"]).length > 0 && "Residual" : "Probability";
  const cellsOf = (row: JobRow): preact.ComponentChildren[] => [
    <button class="quiet" aria-pressed={row === chosen.value} onClick={() => (chosen.value = row)}>
      {shortened(row.id || `${row.number}`)}
    </button>,
    ...(preview ? [<Preview key={row.number} row={row} column={preview} />] : []),
    ...(labelled ? [<div class={measured ? "number" : ""}>{shortened(row.label)}</div>] : []),
    <div class={row.wrong ? "wrong" : measured ? "number" : ""}>
      {shortened(row.prediction)}
      {row.wrong && <span class="hidden"> is not the label</span>}
    </div>,
    ...(beside ? [<div class="number">{besideOf(row)}</div>] : []),
    row.problem ? <bdi class="bad">{row.problem}</bdi> : <VerdictBadge verdict={row.verdict} />,
  ];
  const heads = ["Row", preview && "Input", labelled && "Label", "Prediction", beside, "Checks"];
  return (
    <Paged of={shown.value} page={PAGE}>
      {(page) => (
        <Table kind="rows" heads={heads.filter((head) => typeof head === "string")} rows={page.map(cellsOf)} />
      )}
    </Paged>
  );
}

function besideOf({ residual, probability }: JobRow): string {
  if (residual !== undefined) return signed(residual);
  return probability === undefined ? "" : percent(probability);
}

function shortened(text: string): preact.JSX.Element {
  return <bdi class="short">{text}</bdi>;
}

/** Returns the column that shows what a row is: tokens, a small image, or a text. */
function previewOf(folder: JobFolder): Column | undefined {
  return columnsOf(folder, ["tokens", "input"]).find((column) => {
    const shape = sizesOf(column);
    const isSmallImage = isImage({ shape }) && sizeOf(shape) <= LARGEST_PREVIEW;
    return column["kind"] === "tokens" || column["media_type"]?.startsWith("text/") || isSmallImage;
  });
}

function Preview({ row, column }: { row: JobRow; column: Column }): preact.JSX.Element | null {
  const { cells = {} } = useCells(row.line, [column]);
  const cell = cells[column.name];
  const words = [cell].flat().slice(0, MOST_TOKENS);
  if (typeof words[0] === "string") return <bdi class="preview">{words.join(" ")}</bdi>;
  const part = tensorIn(cells, column);
  if (part === undefined || !isImage(part)) return null;
  return <Canvas class="preview" aria-hidden="true" {...pictureOf(part)} />;
}
