/** The path of data: modules in the order of the tree, as boxes that unfold; the page's own layout places them. */

import { Panel } from "../ui/parts.js";
import { useState } from "preact/hooks";
import { shapeText } from "../ui/text.js";
import { spread } from "./places.js";
import { ran, type ModuleNode, type NodesProps } from "./tree.js";

/** The most modules that are shown inside one. */
const MOST = 300;

/** Shows the path. */
export function Graph(props: NodesProps): preact.JSX.Element {
  return (
    <Panel id="graph" title="The path of data" kind="graph">
      <p class="muted">Modules that ran for the model’s own example, in the order of the tree.</p>
      <Path {...props} />
    </Panel>
  );
}

function Path({ rows, ...others }: NodesProps): preact.JSX.Element {
  const all = rows.filter(ran);
  const path = spread(all, MOST);
  return (
    <ol>
      {path.length < all.length && (
        <li class="muted small">
          {path.length} of {all.length}, from the first to the last; the tree has all.
        </li>
      )}
      {path.map((row) => (
        <Box key={row.address} row={row} {...others} />
      ))}
    </ol>
  );
}

/** A module, or what is inside it. */
function Box({ row, ...others }: Omit<NodesProps, "rows"> & { row: ModuleNode }): preact.JSX.Element {
  const [isOpen, setOpen] = useState(row.address === "");
  const unfolds = row.inside.some(ran);
  const open = unfolds && isOpen;
  const turn = (): void => {
    others.onChoose(row);
    setOpen(!isOpen);
  };
  return (
    <li class={`${open ? "open" : ""} ${row === others.chosen ? "chosen" : ""}`}>
      <button title={row.address} {...(unfolds ? { "aria-expanded": open } : {})} onClick={turn}>
        <bdi class="mono">{row.name}</bdi> {unfolds && (open ? "−" : "+")}
        {!open && <bdi class="muted small">{row.type}</bdi>}
      </button>
      {open ? (
        <Path rows={row.inside} {...others} />
      ) : (
        <span class="muted small flows">{shapeText(row.shapes[0] ?? [])}</span>
      )}
    </li>
  );
}
