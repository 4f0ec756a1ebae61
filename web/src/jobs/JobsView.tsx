/** View 9: the rows that a batch job explained. */

import { Panel, Facts } from "../ui/parts.js";
import { useRef, useState } from "preact/hooks";
import { FileButton, Search, Select } from "../ui/controls.js";
import { type JobFolder, openFolder } from "./folder.js";
import { RowDetails } from "./RowDetails.js";
import { RowTable } from "./RowTable.js";
import { ALL, chosen, folder, KINDS, ORDERS, rows, shown, type Wanted, wanted } from "./rows.js";
import "./jobs.css";

const UNOPENED =
  "One that cutaway batch run wrote. It is read here; of a row that the live model is asked about, the question is sent.";

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
  const [state, setState] = useState<string | Error>("");
  const latest = useRef<readonly File[]>([]);
  const open = async (files: readonly File[]): Promise<void> => {
    latest.current = files;
    folder.value = chosen.value = undefined;
    wanted.value = ALL;
    setState("Reading…");
    const read = await openFolder(files).catch((failure: unknown) => failure as Error);
    if (latest.current !== files) return; // a newer folder was chosen meanwhile
    setState(read instanceof Error ? read : "");
    if (!(read instanceof Error)) folder.value = read;
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

function factsOf({ manifest, lines }: JobFolder): (readonly [string, string])[] {
  const [all, read] = [manifest.rows, lines.length].map((count) => count.toLocaleString("en"));
  const kinds = Object.entries(KINDS).slice(1);
  return [
    ["model", `${manifest.model} ${manifest.version}`],
    ["rows", all === read ? `${all}` : `${read} of ${all}`],
    ...kinds.map(([name, isKind]) => [name, rows.value.filter(isKind).length.toLocaleString("en")] as const),
  ];
}
