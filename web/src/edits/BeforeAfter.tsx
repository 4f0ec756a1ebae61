/** What is before a change and after it, beside each other: inputs, predictions, and where edits ran. */

import { byName } from "@cutaway/client";
import type { Attack, Counterfactual } from "@cutaway/contract/attack_pb";
import type { ComponentChildren, ComponentProps } from "preact";
import { areLogits, barsOf, outputsOf, rowOf, softmax } from "../ask/probabilities.js";
import { Checks } from "../explanations/Explanation.js";
import { isImage, pictureOf } from "../explanations/Values.js";
import { cosine } from "../measures/index.js";
import { spansOf, Strip } from "../pictures/Bars.js";
import { Canvas } from "../pictures/Picture.js";
import { askedParts, type Exchange, exampleOf, tensorsIn, type ViewProps } from "../state/index.js";
import { FactLine, minus, percent, rangesText, short, signed, Table } from "../ui/index.js";
import { relativeChange } from "./downstream.js";
import { editText } from "./edit.js";
import type { Tried } from "./live.js";

interface Props extends ViewProps {
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
  const bars = barsOf(asked, output, one, row).map((bar) => ({ ...bar, now: values[bar.index] ?? NaN }));
  const spanOf = spansOf(
    bars.flatMap(({ value, now }) => [value, now]),
    classes ? (probability) => probability : undefined,
  );
  const rows = bars.map(({ index, name: label, value, now }) => {
    const [logit = NaN, then = NaN] = [edited[index], logits[index]];
    const points = classes ? `${minus((100 * (now - value)).toFixed(1))} points` : undefined;
    return [
      <bdi title={label}>{label}</bdi>,
      ...[value, now].map((each) => <span data-value={each}>{(classes ? percent : short)(each)}</span>),
      <Strip of={[spanOf(value), spanOf(now)]} />,
      signed(now - value, points),
      // what gradients are of: the number before the softmax
      <span title={`${short(then)} before, ${short(logit)} after`}>
        {short(logit, 3)} <span class="muted">({signed(logit - then, short(logit - then, 3))})</span>
      </span>,
    ].slice(0, classes ? 6 : 5);
  });
  const heads = ["", "Before", "After", "", "Difference", ...(classes ? ["Logit now (difference)"] : [])];
  return (
    <>
      <Table kind="before-after" {...{ heads, rows }} />
      {!classes && logits.length > 1 && (
        <p class="small">
          All {logits.length} elements: cosine {short(cosine(logits, edited))}, changed by{" "}
          {short(100 * relativeChange(logits, edited))} % of the norm.
        </p>
      )}
    </>
  );
}

interface ChangedProps extends ViewProps {
  /** What it came to, in words. */
  readonly said: string;
  readonly facts: ComponentProps<typeof FactLine>["facts"];
  readonly of: Pick<Attack | Counterfactual, "inputs" | "predictions" | "checks">;
  readonly children?: ComponentChildren;
}

/** Shows what changed inputs came to: the pictures among them as they were sent and as they are now, and predictions. */
export function Changed({ asked, row, said, facts, of, children }: ChangedProps): preact.JSX.Element {
  const given = tensorsIn(asked.question);
  const pairs = Object.entries(byName(of.inputs)).flatMap(([name, now]) =>
    Object.entries({ [`${name} before`]: given[name], [`${name} now`]: now }),
  );
  const tried = { before: asked.reply.predictions, after: byName(of.predictions) };
  return (
    <>
      {said && <p>{said}</p>}
      <FactLine facts={facts} />
      <div>
        {pairs.map(([label, tensor]) => {
          const part = tensor && exampleOf(asked, tensor, row);
          if (!part || !isImage(part)) return null;
          return (
            <figure key={label} class="attacked">
              <figcaption class="muted small">{label}</figcaption>
              <Canvas {...pictureOf(part)} role="img" aria-label={label} />
            </figure>
          );
        })}
      </div>
      {children}
      {of.predictions.length > 0 && <BeforeAfter {...{ tried, asked, row }} />}
      <Checks checks={of.checks} row={row} />
    </>
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
