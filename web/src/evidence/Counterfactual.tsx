/** Counterfactuals: a small change of each example that makes another class of it. */

import { byName, type Question } from "@cutaway/client";
import type { Counterfactual as Message } from "@cutaway/contract/attack_pb";
import { Asking } from "../ask/Asking.js";
import { Changed } from "../edits/BeforeAfter.js";
import { isImage } from "../explanations/Values.js";
import { elementOf, exampleOf, tensorsIn, type ViewProps } from "../state/index.js";
import { NumberField, short, Table, useFields } from "../ui/index.js";

/** The axes of a batch of pictures: [batch, channels, height, width]. */
const AXES_OF_PICTURES = 4;

/** Asks for a search among regions of a picture, words, or columns, whatever the model takes; shows what came of it. */
export function Counterfactual({ asked, row }: ViewProps): preact.JSX.Element {
  const { inputs } = asked.model;
  const [{ segments, maxChanges, ...range }, field] = useFields({ segments: 20, lower: 0, upper: 1, maxChanges: 10 });
  const found = asked.reply.message.counterfactual;
  const pictures = inputs.some(({ shape }) => shape.length === AXES_OF_PICTURES);
  const words = inputs.some(({ name }) => name === "input_ids");
  const columns = Object.entries(tensorsIn(asked.question)).flatMap(([name, { shape }]) =>
    Array.from({ length: shape[1] ?? 0 }, (_, at) => [`${name}[${at}]`, range] as const),
  );
  const among = words
    ? { tokens: { remove: true } }
    : pictures
      ? { masks: { superpixels: { "": { segments } } } }
      : { columns: Object.fromEntries(columns) };
  if (asked.reply.classes.length === 0) return <p class="muted">It takes a model with classes.</p>;
  return (
    <>
      <Asking
        {...{ asked }}
        label="Search"
        parts={(): Partial<Question> => ({ counterfactual: { ...among, maxChanges } })}
        costly
      >
        {pictures && <NumberField label="Regions" least={2} whole {...field("segments")} />}
        {!pictures && !words && <NumberField label="Least value" {...field("lower")} />}
        {!pictures && !words && <NumberField label="Largest value" {...field("upper")} />}
        <NumberField label="Most changes" least={1} whole {...field("maxChanges")} />
      </Asking>
      {found && <Found {...{ asked, row, found }} />}
    </>
  );
}

type FoundProps = Readonly<ViewProps & { found: Message }>;

/** Shows what was changed of one example, before and after, and the prediction. */
function Found({ asked, row, found }: FoundProps): preact.JSX.Element {
  const { name } = elementOf(asked, Number(found.classes[row] ?? 0));
  const said = found.succeeded[row] ? `It is “${name}” then.` : "Nothing was found that makes another class of it.";
  const [changes, passes] = [found.changes, found.passes].map((counts) => Number(counts[row]));
  return (
    <Changed {...{ asked, row, said }} facts={Object.entries({ changes, passes })} of={found}>
      {found.inputs.map(({ name: input }) => (
        <ChangedElements key={input} {...{ asked, row, found, input }} />
      ))}
    </Changed>
  );
}

type InputProps = FoundProps & Readonly<{ input: string }>;

/** Shows the elements of an input that are others, before and after; nothing for a picture. */
function ChangedElements({ asked, row, found, input }: InputProps): preact.JSX.Element | null {
  const [before, now, others] = [tensorsIn(asked.question), byName(found.inputs), byName(found.changed)].map(
    ({ [input]: tensor }) => tensor && exampleOf(asked, tensor, row),
  );
  const words = asked.reply.attributions[0]?.message.tokens?.texts[row]?.tokens;
  const names = words ?? asked.reply.message.featureNames.find((each) => each.input === input)?.names ?? [];
  const rows = Array.from(others?.values ?? []).flatMap((is, at) => {
    const [then, since] = [before, now].map((part) => short(part?.values[at] ?? NaN));
    return is ? [[<bdi>{names[at] ?? `${input} ${at}`}</bdi>, before ? then : "", since]] : [];
  });
  if (rows.length === 0 || (now && isImage(now))) return null;
  return <Table heads={["Changed", "Before", "Now"]} rows={rows} />;
}
