/** Two predictions beside each other, and the difference. */

import { areLogits, barsOf, outputsOf, rowOf, softmax } from "../ask/probabilities.js";
import { cosine } from "../measures/index.js";
import { spansOf } from "../pictures/Bars.js";
import { askedParts, type Exchange, type ViewProps } from "../state/index.js";
import { Heads, minus, percent, rangesText, short, signed, Table } from "../ui/index.js";
import { relativeChange } from "./downstream.js";
import { editText } from "./edit.js";
import type { Tried } from "./live.js";

interface Props extends Pick<ViewProps, "asked" | "row"> {
  readonly tried: Pick<Tried, "before" | "after">;
  /** The output; by default the first. */
  readonly name?: string;
}

/** Shows the largest classes before the change, or the first elements. */
export function BeforeAfter({ tried: { before, after }, asked, row, name }: Props): preact.JSX.Element {
  const output = name ?? outputsOf(asked.reply)[0]?.[0] ?? Object.keys(before)[0] ?? "";
  const [one, other] = [before[output], after[output]];
  if (!one || !other) return <p class="muted">The model returned nothing to compare.</p>;
  const classes = areLogits(asked, output);
  const [logits, edited] = [rowOf(asked, one, row), rowOf(asked, other, row)];
  const values = classes ? softmax(edited) : edited;
  const rows = barsOf(asked, output, one, row).map((bar) => ({ ...bar, now: values[bar.index] ?? Number.NaN }));
  const shown = rows.flatMap(({ value, now }) => [value, now]);
  const spanOf = spansOf(shown, classes ? (probability) => probability : undefined);
  const told = classes ? percent : short;
  return (
    <>
      <table class="before-after">
        <Heads of={["", "Before", "After", "", "Difference", ...(classes ? ["Logit now (difference)"] : [])]} />
        <tbody>
          {rows.map(({ index, name: label, value, now }) => (
            <tr key={index}>
              <th scope="row" title={label}>
                <bdi>{label}</bdi>
              </th>
              {[value, now].map((each, at) => (
                <td key={at} class="number" data-value={each}>
                  {told(each)}
                </td>
              ))}
              <td class="bar">
                <svg viewBox="0 0 100 2" preserveAspectRatio="none" aria-hidden="true">
                  <rect class="then" {...spanOf(value)} height={0.9} />
                  <rect class="now" {...spanOf(now)} y={1.1} height={0.9} />
                </svg>
              </td>
              <td class="number">
                {signed(now - value, classes ? `${minus((100 * (now - value)).toFixed(1))} points` : undefined)}
              </td>
              {classes && <Logit before={logits[index] ?? Number.NaN} after={edited[index] ?? Number.NaN} />}
            </tr>
          ))}
        </tbody>
      </table>
      {!classes && logits.length > 1 && (
        <p class="small">
          All {logits.length} elements: cosine {short(cosine(logits, edited))}, changed by{" "}
          {short(100 * relativeChange(logits, edited))} % of the norm.
        </p>
      )}
    </>
  );
}

/** What gradients are of: the number before the softmax. */
function Logit({ before, after }: { before: number; after: number }): preact.JSX.Element {
  return (
    <td class="number" title={`${short(before)} before, ${short(after)} after`}>
      {short(after, 3)} <span class="muted">({signed(after - before, short(after - before, 3))})</span>
    </td>
  );
}

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
