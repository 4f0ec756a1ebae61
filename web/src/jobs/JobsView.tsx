/** View 9: the rows that a batch job explained. */

import { Panel, Facts } from "../app/parts.js";
import { useRef, useState } from "preact/hooks";
import { FileButton, Search, Select } from "../app/controls.js";
import { type JobFolder, openFolder } from "./folder.js";
import { RowDetails } from "./RowDetails.js";
import { RowTable } from "./RowTable.js";
import { ALL, chosen, folder, KINDS, ORDERS, rows, shown, type Wanted, wanted } from "./rows.js";
import "./jobs.css";

/** Shows a folder, or asks for one. */
export function JobsView(): preact.JSX.Element {
  const open = folder.value;
  return (
    <div class="jobs">
      <Panel id="folder" title="Results of a job">
        <Opening />
        {open && <Facts facts={factsOf(open)} />}
      </Panel>
      {open && (
        <Panel id="rows" title="Rows">
          <Filters />
          <RowTable key={JSON.stringify(wanted.value)} folder={open} />
        </Panel>
      )}
      {open && chosen.value && <RowDetails key={chosen.value.number} folder={open} row={chosen.value} />}
    </div>
  );
}

function Opening(): preact.JSX.Element {
  const [{ text, wrong }, setState] = useState({ text: "", wrong: false });
  const latest = useRef<readonly File[]>([]);
  const open = async (files: readonly File[]): Promise<void> => {
    latest.current = files;
    folder.value = chosen.value = undefined;
    wanted.value = ALL;
    setState({ text: "Reading…", wrong: false });
    const read = await openFolder(files).catch((failure: unknown) =>
      failure instanceof Error ? failure : new Error(String(failure)),
    );
    if (latest.current !== files) return; // a newer folder was chosen meanwhile
    const failed = read instanceof Error;
    if (!failed) folder.value = read;
    setState({ text: failed ? read.message : (files[0]?.webkitRelativePath.split("/")[0] ?? ""), wrong: failed });
  };
  return (
    <div class="tools">
      <FileButton accept="" onOpen={(files) => void open(files)}>
        Open a folder
      </FileButton>
      <p class={wrong ? "problem" : "muted"} role="status">
        {text ||
          folder.value?.manifest.model ||
          "One that cutaway batch run wrote. It is read here; of a row that the live model is asked about, the input is sent."}
      </p>
    </div>
  );
}

function Filters(): preact.JSX.Element {
  const set = (part: Partial<Wanted>): void => {
    wanted.value = { ...wanted.value, ...part };
  };
  const { kind, order, text } = wanted.value;
  return (
    <div class="tools">
      <Select label="Show" of={named(KINDS)} value={kind} onChoose={(each) => set({ kind: each })} />
      <Select label="Order" of={named(ORDERS)} value={order} onChoose={(each) => set({ order: each })} />
      <Search
        hint="Search: an id, a label or a prediction"
        words={["row", "rows"]}
        {...{ value: text, found: shown.value.length, onSearch: (each: string): void => set({ text: each }) }}
      />
    </div>
  );
}

function named<T extends string>(table: Readonly<Record<T, unknown>>): [T, string][] {
  return (Object.keys(table) as T[]).map((each) => [each, each]);
}

function factsOf({ manifest, lines }: JobFolder): [string, string][] {
  const count = (kind: keyof typeof KINDS): string =>
    rows.value.filter((row) => KINDS[kind](row)).length.toLocaleString("en");
  const all = manifest.rows.toLocaleString("en");
  return [
    ["model", `${manifest.model} ${manifest.version}`],
    ["rows", lines.length === manifest.rows ? all : `${lines.length.toLocaleString("en")} of ${all}`],
    ["other class than the label", count("other class than the label")],
    ["disagree", count("explanations that disagree")],
    ["inconclusive", count("inconclusive checks")],
    ["bad rows", count("bad rows")],
  ];
}
