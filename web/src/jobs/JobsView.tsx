/** View 9: the rows that a batch job explained. In a file with a job inside, it is the whole page. */

import { useRef } from "preact/hooks";
import { Facts, FileButton, Panel, Search, Select, useCall } from "../ui/index.js";
import { Cards, exampleLists } from "./Cards.js";
import { BadRows, Confusion, Findings, LISTED, Outcomes, Provenance, Residuals, shares } from "./Overview.js";
import { RowDetails } from "./RowDetails.js";
import { RowTable } from "./RowTable.js";
import { Features, Layers, Means } from "./Tensors.js";
import { type JobFolder, openFolder } from "./folder.js";
import { ALL, chosen, type Filter, filtered, FILTERS, orders, type Query, query, show, shown } from "./query.js";
import { folder, inOrder, rows, samples } from "./rows.js";
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
  const [{ busy, failure }, start] = useCall();
  const latest = useRef<readonly File[]>([]);
  const open = async (files: readonly File[]): Promise<void> => {
    latest.current = files;
    show(undefined);
    const read = await openFolder(files);
    if (latest.current === files) show(read); // no newer folder was chosen meanwhile
  };
  const said = busy ? "Reading…" : folder.value?.name || UNOPENED;
  return (
    <div class="tools">
      <FileButton accept="" onOpen={(files) => start(open(files))}>
        Open a folder
      </FileButton>
      <p class={failure ? "problem" : "muted"} role="status">
        {failure?.message ?? said}
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
