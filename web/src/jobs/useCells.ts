/** Cells of one row, read when a component shows it. */

import { useEffect, useState } from "preact/hooks";
import { type Cells, cellsOf, type Line } from "./folder.js";

/** What was read of a row. */
interface Read {
  readonly line?: Line;
  readonly cells?: Cells;
  /** Why it cannot be read. */
  readonly failure?: string;
}

/** Returns columns of a row; neither cells nor a failure while they are read, and never those of another row. */
export function useCells(line: Line, columns: readonly string[]): Read {
  const [read, setRead] = useState<Read>({});
  useEffect(() => {
    let current = true;
    const put = (found: Read): void => {
      if (current) setRead({ line, ...found });
    };
    cellsOf(line, columns).then(
      (cells) => put({ cells }),
      (failure: unknown) => put({ failure: `${line.shard.file.name} cannot be read: ${String(failure)}` }),
    );
    return (): void => {
      current = false;
    };
  }, [line, columns.join()]);
  return read.line === line ? read : {};
}
