/** The way to a row. */

import { chosen, type JobRow } from "./rows.js";

/** A row's id, which leads to the row. */
export function RowLink({ row }: { row: JobRow }): preact.JSX.Element {
  return (
    <button class="quiet link" aria-pressed={row === chosen.value} onClick={() => (chosen.value = row)}>
      <bdi class="short">{row.id || row.number}</bdi>
    </button>
  );
}
