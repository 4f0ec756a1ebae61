/** The folder that a job wrote: rows without their tensors at once, and the tensors of those that are looked at. */

import { decompress } from "fzstd";
import { type FileMetaData, parquetMetadataAsync, parquetReadObjects } from "hyparquet";
import { sizeOf, type Part } from "../measures/numbers.js";

/** Where the results come from: what this page needs of `_manifest.json`. */
export interface Manifest {
  readonly schema: number;
  readonly model: string;
  readonly version: string;
  readonly labels: readonly string[];
  readonly weights_sha256: string;
  readonly rows: number;
  /** What each column is: its `kind`, `attribution`, `method`, `layer`, `input`, `shape`, ... */
  readonly columns: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly feature_names?: Readonly<Record<string, readonly string[]>>;
  /** The request for the first row, without inputs, in the contract's JSON; missing in folders of earlier versions. */
  readonly question?: object;
  readonly job: { readonly target: unknown };
}

/** The cells of one row, by the names of their columns. */
export type Cells = Readonly<Record<string, unknown>>;

interface Shard {
  readonly file: File;
  readonly metadata: FileMetaData;
}

/** One row, and where it is. */
export interface Line {
  readonly cells: Cells;
  readonly shard: Shard;
  /** Its index in the shard. */
  readonly at: number;
}

/** A folder, and all of its rows without their tensors. */
export interface JobFolder {
  readonly manifest: Manifest;
  readonly lines: readonly Line[];
}

const SCHEMA = 1;
const SMALL = ["row", "id", "label", "prediction", "prediction_name", "probability", "target"];
const OUTCOMES = ["verdict", "reason", "largest_error", "error", "error_message"];

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
  const parts = files.filter(({ name }) => /^part-\d+\.parquet$/.test(name));
  const columns = columnsOf(manifest, [...SMALL, ...OUTCOMES]);
  const lines: Line[] = [];
  for (const part of parts.sort((one, other) => one.name.localeCompare(other.name))) {
    try {
      const shard = { file: part, metadata: await parquetMetadataAsync(bufferOf(part)) };
      for (const [at, cells] of (await read(shard, columns)).entries()) lines.push({ cells, shard, at });
    } catch (failure) {
      throw new Error(`${part.name} cannot be read: ${String(failure)}`, { cause: failure });
    }
  }
  return { manifest, lines };
}

/** Returns the names of the columns of these kinds. */
export function columnsOf({ columns }: Manifest, kinds: readonly string[]): string[] {
  return Object.keys(columns).filter((name) => kinds.includes(columns[name]?.["kind"] ?? ""));
}

/** Reads columns of one row. */
export async function cellsOf({ shard, at }: Line, columns: readonly string[]): Promise<Cells> {
  const [cells = {}] = await read(shard, columns, at, at + 1);
  return cells;
}

/** Returns the tensor in a cell, which has the shape of its column, or its own; undefined if there is none. */
export function tensorIn(cell: unknown, { shape = "" }: Readonly<Record<string, string>>): Part | undefined {
  const ragged = cell as { values?: readonly unknown[]; shape?: readonly number[] } | null | undefined;
  const flat = Array.isArray(cell) ? (cell as readonly unknown[]) : ragged?.values;
  if (flat === undefined) return undefined;
  const values = Float64Array.from(flat, Number);
  const sizes = ragged?.shape ?? shape.split(",").filter(Boolean).map(Number);
  return { values, shape: sizeOf(sizes) === values.length ? sizes : [values.length] };
}

async function read(shard: Shard, columns: readonly string[], rowStart?: number, rowEnd?: number): Promise<Cells[]> {
  return parquetReadObjects({
    file: bufferOf(shard.file),
    metadata: shard.metadata,
    columns: [...columns],
    ...(rowStart === undefined ? {} : { rowStart }),
    ...(rowEnd === undefined ? {} : { rowEnd }),
    utf8: false, // bytes that are no text stay bytes
    useOffsetIndex: true, // of large tensors, only the pages with these rows
    compressors: { ZSTD: (bytes, size) => decompress(bytes, new Uint8Array(size)) },
  });
}

function bufferOf(file: File): { byteLength: number; slice: (start: number, end?: number) => Promise<ArrayBuffer> } {
  return { byteLength: file.size, slice: (start, end) => file.slice(start, end).arrayBuffer() };
}
