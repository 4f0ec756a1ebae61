/** Counterfactuals: a small change of each example that makes another class of it. */

import { byName } from "@cutaway/client";
import type { Counterfactual as Message } from "@cutaway/contract/attack_pb";
import { useState } from "preact/hooks";
import { BeforeAfter } from "../edits/BeforeAfter.js";
import { Checks } from "../explanations/Explanation.js";
import { isImage } from "../explanations/Values.js";
import { type Draft, elementOf, exampleOf, tensorsIn, type ViewProps } from "../state/index.js";
import { comparedIn, FactLine, NumberField, short, Table } from "../ui/index.js";
import { Costed } from "./Costed.js";
import { Row } from "./rows.js";

/** The axes of a batch of pictures: [batch, channels, height, width]. */
const AXES_OF_PICTURES = 4;

/** Asks for a search among regions of a picture, words, or columns, whatever the model takes; shows what came of it. */
export function Counterfactual({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const { inputs } = asked.model;
  const given = Object.entries(tensorsIn(asked.question));
  const pictures = inputs.some(({ shape }) => shape.length === AXES_OF_PICTURES);
  const words = inputs.some(({ name }) => name === "input_ids");
  const [regions, setRegions] = useState(20);
  const [lower, setLower] = useState(0);
  const [upper, setUpper] = useState(1);
  const [most, setMost] = useState(10);
  const columns = given.flatMap(([name, { shape }]) =>
    Array.from({ length: shape[1] ?? 0 }, (_, at) => [`${name}[${at}]`, { lower, upper }] as const),
  );
  const parts = (): Partial<Draft> => {
    const among = words
      ? { tokens: { remove: true } }
      : pictures
        ? { masks: { superpixels: { "": { segments: regions } } } }
        : { columns: Object.fromEntries(columns) };
    return { counterfactual: { ...among, maxChanges: most } };
  };
  if (asked.reply.classes.length === 0) return <p class="muted">It takes a model with classes.</p>;
  return (
    <>
      <Costed {...{ asked, ask, parts }} label="Search">
        {pictures && (
          <NumberField label="Regions" value={regions} least={2} whole onChange={(each = 2) => setRegions(each)} />
        )}
        {!pictures && !words && (
          <>
            <NumberField label="Least value" value={lower} onChange={(each = 0) => setLower(each)} />
            <NumberField label="Largest value" value={upper} onChange={(each = 1) => setUpper(each)} />
          </>
        )}
        <NumberField label="Most changes" value={most} least={1} whole onChange={(each = 1) => setMost(each)} />
      </Costed>
      {asked.reply.message.counterfactual && <Found {...{ asked, row }} found={asked.reply.message.counterfactual} />}
    </>
  );
}

type FoundProps = Readonly<Pick<ViewProps, "asked" | "row"> & { found: Message }>;

/** Shows what was changed of one example, before and after, and the prediction. */
function Found({ asked, row, found }: FoundProps): preact.JSX.Element {
  const name = elementOf(asked, Number(found.classes[row] ?? 0)).name;
  const after = byName(found.predictions);
  return (
    <>
      <p>{found.succeeded[row] ? `It is “${name}” then.` : "Nothing was found that makes another class of it."}</p>
      <FactLine
        facts={[
          ["changes", Number(found.changes[row])],
          ["passes", Number(found.passes[row])],
        ]}
      />
      {found.inputs.map(({ name: input }) => (
        <Changed key={input} {...{ asked, row, found, input }} />
      ))}
      {found.predictions.length > 0 && (
        <div class="wide" tabIndex={0}>
          <BeforeAfter tried={{ before: asked.reply.predictions, after }} {...{ asked, row }} />
        </div>
      )}
      <Checks compared={comparedIn({ checks: found.checks }, row)} />
    </>
  );
}

/** Shows an input before and after: pictures, or the elements that are others. */
function Changed({ asked, row, found, input }: FoundProps & Readonly<{ input: string }>): preact.JSX.Element | null {
  const [before, now, others] = [tensorsIn(asked.question), byName(found.inputs), byName(found.changed)].map(
    ({ [input]: tensor }) => tensor && exampleOf(asked, tensor, row),
  );
  if (now && isImage(now))
    return (
      <>
        {[before, now].map((part, at) => {
          const label = `${input} ${at ? "now" : "before"}`;
          return (
            part && (
              <figure key={label} class="attacked">
                <figcaption class="muted small">{label}</figcaption>
                <Row {...{ label, part }} />
              </figure>
            )
          );
        })}
      </>
    );
  const words = asked.reply.attributions[0]?.message.tokens?.texts[row]?.tokens;
  const names = words ?? asked.reply.message.featureNames.find((each) => each.input === input)?.names ?? [];
  const rows = Array.from(others?.values ?? []).flatMap((is, at) => {
    const [then, since] = [before, now].map((part) => short(part?.values[at] ?? Number.NaN));
    return is ? [[<bdi>{names[at] ?? `${input} ${at}`}</bdi>, before ? then : "", since]] : [];
  });
  return rows.length > 0 ? <Table heads={["Changed", "Before", "Now"]} rows={rows} /> : null;
}
