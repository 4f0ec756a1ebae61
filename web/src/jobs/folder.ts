/** The folder that a job wrote: rows without their tensors at once, and the tensors of those that are looked at. */

import { decompress } from "fzstd";
import { type AsyncBuffer, type FileMetaData, parquetMetadataAsync, parquetReadObjects } from "hyparquet";
import { type Part, sizeOf } from "../measures/index.js";
import { useLoaded } from "../ui/loaded.js";

/** Where the results come from: what this page needs of `_manifest.json`. */
export interface Manifest {
  readonly schema: number;
  readonly model: string;
  readonly version: string;
  readonly labels: readonly string[];
  readonly weights_sha256: string;
  readonly fingerprint: string;
  readonly data_type: string;
  readonly device: string;
  readonly seed: number;
  readonly versions: Readonly<Record<string, string>>;
  readonly rows: number;
  readonly shard_rows: number;
  readonly columns: Readonly<Record<string, Omit<Column, "name">>>;
  readonly feature_names?: Readonly<Record<string, readonly string[]>>;
  /** The request for the first row, without inputs, in the contract's JSON; missing in folders of earlier versions. */
  readonly question?: object;
  readonly job: { readonly target: unknown; readonly data?: string | { readonly path: string } };
  /** Which part of the job is here, if the page is a file with the job inside. */
  readonly excerpt?: Excerpt;
}

/** A part of a job: all of its rows, or evenly spaced ones. */
export interface Excerpt {
  /** How many rows the job has written. */
  readonly rows: number;
  /** Rows whose index is a multiple have their tensors, as have examples. */
  readonly every: number;
  /** The columns of large pictures, which are reduced to means of blocks. */
  readonly reduced: readonly string[];
}

/** A column, and what it is: its `kind`, `attribution`, `method`, `layer`, `input`, `shape`, ... */
export interface Column {
  readonly name: string;
  readonly [about: string]: string | undefined;
}

/** The cells of one row, by the names of their columns. */
export type Cells = Readonly<Record<string, unknown>>;

type Shard = Readonly<{ file: File; metadata: FileMetaData }>;

/** One row, and where it is. */
export interface Line {
  readonly cells: Cells;
  readonly shard: Shard;
  /** Its index in the shard. */
  readonly at: number;
}

/** A folder, and all of its rows without their tensors. */
export interface JobFolder {
  /** Of the folder itself. */
  readonly name: string;
  readonly manifest: Manifest;
  readonly columns: readonly Column[];
  readonly lines: readonly Line[];
}

/** The tensors of a row that statistics are computed from; `index` is that of its line. */
export type Sample = Readonly<{ index: number; cells: Cells }>;

const SCHEMA = 1;
const SMALL = ["row", "id", "label", "residual", "prediction", "prediction_name", "probability", "targets", "warnings"];
const OUTCOMES = ["verdict", "reason", "largest_error", "convergence_delta", "skipped", "error", "error_message"];

/** The most bytes of tensors that statistics are computed from. */
const MOST_BYTES = 2 ** 26;

/**
 * Opens a folder.
 *
 * @throws Error that says what is missing or damaged.
 */
export async function openFolder(files: readonly File[]): Promise<JobFolder> {
  const file = files.find(({ name }) => name === "_manifest.json" || name === "manifest.json");
  if (file === undefined) throw new Error("the folder holds no job: it has no _manifest.json");
  const manifest = JSON.parse(await file.text()) as Manifest;
  if (manifest.schema !== SCHEMA) throw new Error(`the manifest has schema ${manifest.schema}, not ${SCHEMA}`);
  const [folder = ""] = /^.*\//.exec(file.webkitRelativePath) ?? [];
  const own = files.filter(({ name, webkitRelativePath: path }) => !path || path === folder + name);
  const parts = own.filter(({ name }) => /^part-\d+\.parquet$/.test(name));
  const columns = Object.entries(manifest.columns).map(([name, about]): Column => ({ ...about, name }));
  const small = [...columnsOf({ columns }, [...SMALL, ...OUTCOMES]), ...measuredOf({ columns })];
  const lines: Line[] = [];
  for (const part of parts.sort((one, other) => one.name.localeCompare(other.name))) {
    const metadata = await parquetMetadataAsync(bufferOf(part)).catch(raiseUnreadable(part));
    const shard = { file: part, metadata };
    lines.push(...(await read(shard, small)).map((cells, at) => ({ cells, shard, at })));
  }
  return { name: file.webkitRelativePath.split("/").at(-2) ?? manifest.model, manifest, columns, lines };
}

/** Returns the columns of these kinds; those of one attribution, if it is named. */
export function columnsOf({ columns }: Pick<JobFolder, "columns">, kinds: readonly string[], name?: string): Column[] {
  return columns.filter(
    ({ kind = "", attribution }) => kinds.includes(kind) && (name === undefined || attribution === name),
  );
}

/** Returns the only output, if it is one number for each row, and rows have no classes. */
export function measuredOf(folder: Pick<JobFolder, "columns">): Column[] {
  const outputs = columnsOf(folder, ["output"]);
  const isNumber =
    outputs.length === 1 && outputs.every((output) => !output["ragged"] && sizeOf(sizesOf(output)) === 1);
  return isNumber && columnsOf(folder, ["prediction"]).length === 0 ? outputs : [];
}

/** Reads columns of one row. */
export async function cellsOf({ shard, at }: Line, columns: readonly Column[]): Promise<Cells> {
  const [cells = {}] = await read(shard, columns, at);
  return cells;
}

/** Reads columns of evenly spaced rows: of all, if their tensors are small enough. */
export async function samplesOf({ lines, manifest }: JobFolder, columns: readonly Column[]): Promise<Sample[]> {
  const names = columns.map(({ name }) => name);
  const chunks = [...new Set(lines.map(({ shard }) => shard.metadata))]
    .flatMap(({ row_groups: groups }) => groups.flatMap((group) => group.columns))
    .flatMap(({ meta_data: chunk }) => (chunk && names.includes(chunk.path_in_schema[0] ?? "") ? [chunk] : []));
  const bytes = chunks.reduce((sum, chunk) => sum + Number(chunk.total_uncompressed_size), 0);
  const every = manifest.excerpt?.every ?? Math.max(1, Math.ceil(bytes / MOST_BYTES));
  const samples: Sample[] = [];
  let whole: { shard: Shard; rows: readonly Cells[] } | undefined;
  for (const [index, line] of lines.entries()) {
    if (Number(line.cells["row"]) % every) continue;
    if ((manifest.excerpt || every === 1) && whole?.shard !== line.shard)
      whole = { shard: line.shard, rows: await read(line.shard, columns) };
    samples.push({ index, cells: whole?.rows[line.at] ?? (await cellsOf(line, columns)) });
  }
  return samples;
}

/** Returns columns of a row, or why it cannot be read; nothing while they are read. */
export function useCells(line: Line, columns: readonly Column[]): { cells?: Cells | undefined; failure?: string } {
  const { value: cells, failure } = useLoaded(() => cellsOf(line, columns), [line]);
  return { cells, ...(failure && { failure: failure.message }) };
}

/** Returns the sizes of a tensor in a column, without the axis of rows; none where rows differ. */
export function sizesOf({ shape = "" }: Column): number[] {
  return shape.split(",").filter(Boolean).map(Number);
}

/** Returns the tensor in a cell, which has the shape of its column, or its own; undefined if there is none. */
export function tensorIn(cells: Cells, column: Column): Part | undefined {
  const cell = cells[column.name];
  if (typeof cell === "number") return { values: Float64Array.of(cell), shape: [] };
  const ragged = cell as { values?: readonly unknown[]; shape?: readonly number[] } | null | undefined;
  const flat = Array.isArray(cell) ? (cell as readonly unknown[]) : ragged?.values;
  if (flat === undefined) return undefined;
  const values = Float64Array.from(flat, Number);
  const sizes = ragged?.shape ?? sizesOf(column);
  return { values, shape: sizeOf(sizes) === values.length ? sizes : [values.length] };
}

/** Reads columns of one row of a shard, or of all. */
async function read({ file, metadata }: Shard, columns: readonly Column[], at?: number): Promise<Cells[]> {
  return parquetReadObjects({
    file: bufferOf(file),
    metadata,
    columns: columns.map(({ name }) => name),
    ...(at === undefined ? {} : { rowStart: at, rowEnd: at + 1 }),
    utf8: false, // bytes that are no text stay bytes
    useOffsetIndex: true, // of large tensors, only the pages with these rows
    compressors: { ZSTD: (bytes, size) => decompress(bytes, new Uint8Array(size)) },
  }).catch(raiseUnreadable(file));
}

/** Returns what raises an error that names the file. */
function raiseUnreadable({ name }: File): (failure: unknown) => never {
  return (failure) => {
    throw new Error(`${name} cannot be read: ${String(failure)}`, { cause: failure });
  };
}

function bufferOf(file: File): AsyncBuffer {
  return { byteLength: file.size, slice: (start, end) => file.slice(start, end).arrayBuffer() };
}
