/** What each edit of a question did, as the server counted it. */

import { askedParts } from "../state/draft.js";
import type { Exchange } from "../state/exchange.js";
import { Table } from "../ui/parts.js";
import { rangesText } from "../ui/text.js";
import { editText } from "./edit.js";

/** Shows where each edit ran, and how far it moved the tensors there; nothing without edits. */
export function Receipts({ asked: { question, reply } }: { asked: Exchange }): preact.JSX.Element | null {
  const { receipts, generated } = reply.message;
  const { edits } = askedParts(question);
  if (receipts.length === 0) return null;
  const rows = receipts.map(({ tensors, changed, norm, steps }, index) => [
    <bdi class="mono">{edits[index] && editText(edits[index])}</bdi>,
    ...(generated.length ? [rangesText(steps)] : []),
    tensors,
    changed ? norm : <span class="unsure">not at all</span>,
  ]);
  return <Table heads={["Edit", ...(generated.length ? ["Steps"] : []), "Tensors", "Moved by"]} rows={rows} />;
}
