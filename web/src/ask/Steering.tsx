/** Steering what a language model writes: a vector from one text to another, and how far it is added. */

import { create } from "@bufbuild/protobuf";
import { CutawayError, HookPoint, type ModelDetail, tensor, toMessage } from "@cutaway/client";
import { CaptureRequestSchema } from "@cutaway/contract/capture_pb";
import { type Edit, EditSchema, VectorNorm } from "@cutaway/contract/edit_pb";
import { editText } from "../edits/edit.js";
import { numbersOf } from "../measures/index.js";
import { blocksOf, requestAt, whereIs } from "../models/places.js";
import { alter, ask, askedParts, client, complete, draft } from "../state/index.js";
import { Button, Failure, Form, Panel, SlidingNumber, TextField, useCall, useFields } from "../ui/index.js";
import { FLOATING, writes } from "./ways.js";

/** How far a slider reaches, unless the scale is beyond it. */
const MOST_SCALE = 4;
/** How long a slider that was let go must rest before the question is asked: the arrow keys let it go each time. */
const REST_MS = 250;

/** Asks for both texts, unless the edits are others by then; what runs then ends. */
function askSoon(): void {
  const { edits } = draft.value;
  setTimeout(() => draft.value.edits === edits && void ask({ compare: true }), REST_MS);
}

/** Shows how far each vector of the question is added; asks again when a person lets go. */
export function Scales(): preact.JSX.Element {
  const { edits } = askedParts(draft.value);
  const sliders = edits.map((edit, index) => {
    if (edit.kind.case !== "addVector") return null;
    const vector = edit.kind.value;
    const { scale = 1 } = vector;
    const most = Math.max(MOST_SCALE, Math.abs(scale));
    const set = (chosen: number): void => {
      const kind = { case: "addVector", value: { ...vector, scale: chosen } } as const;
      alter({ edits: edits.with(index, { ...edit, kind }) });
    };
    return (
      <div key={index} class="steering">
        <SlidingNumber
          label={<bdi>Scale of {editText(edit)}</bdi>}
          {...{ value: scale, least: -most, most, step: 0.1, onChange: set, onDone: askSoon }}
        />
      </div>
    );
  });
  return <>{sliders}</>;
}

/** Makes a vector for the question: what changes at a module when one text is read instead of another. */
export function Steer({ detail }: { detail: ModelDetail }): preact.JSX.Element | null {
  const blocks = blocksOf(detail);
  const middle = blocks[Math.floor(blocks.length / 2)] ?? "";
  const [{ from, to, module }, field] = useFields({ from: "", to: "", module: middle });
  const [{ busy, failure }, start] = useCall();
  if (!writes(detail)) return null;
  const make = async (): Promise<void> => {
    const edit = await vectorBetween(draft.value.model, from, to, module.trim());
    const change = { edits: [...(draft.value.edits ?? []), edit], compare: true };
    if (complete.value) void ask(change);
    else alter(change);
  };
  return (
    <Panel id="steer" title="Steer what it writes">
      <Form kind="texts" onDone={() => start(make())}>
        <TextField label="From the text" required {...field("from")} />
        <TextField label="To the text" required {...field("to")} />
        <TextField label="At the module" class="mono" list="places" required {...field("module")} />
        <div class="actions">
          <Button text="Add the vector" type="submit" disabled={busy} />
        </div>
        <p class="muted small">
          The vector is what the module returns at the last token of the second text, less that of the first. It is
          added at every token, with the length of what is there times the scale.
        </p>
        {failure && <Failure error={failure} />}
      </Form>
    </Panel>
  );
}

/**
 * Returns the edit that adds what a module returns at the last token of `to`, less what it does at that of `from`.
 *
 * @throws CutawayError if the module has no vector there, or the two are the same.
 */
async function vectorBetween(model: string, from: string, to: string, module: string): Promise<Edit> {
  const last = { case: "position", value: -1 } as const;
  const capture = create(CaptureRequestSchema, { ...requestAt(module, HookPoint.OUTPUT), token: last });
  const { captured } = await client.value.inspect({ model, inputs: [from, to], captures: [capture] });
  const [one, ...others] = captured.filter(
    ({ tensor: { shape, dataType } }) => shape.length === 2 && shape[0] === 2 && FLOATING.includes(dataType),
  );
  if (!one || others.some((each) => each.module !== one.module || each.call !== one.call))
    throw new CutawayError("INVALID_VALUE", `name one module that returns a vector at each token: ${module}`, "module");
  const values = numbersOf(one.tensor);
  const size = values.length / 2;
  const difference = Float32Array.from({ length: size }, (_, at) => (values[size + at] ?? 0) - (values[at] ?? 0));
  if (difference.every((each) => each === 0))
    throw new CutawayError("INVALID_VALUE", "the module returns the same at the last token of both texts", "vector");
  const vectorSource = { case: "vector", value: toMessage(tensor(difference, [size])) } as const;
  const kind = { case: "addVector", value: { vectorSource, scale: 1, norm: VectorNorm.MATCH } } as const;
  return create(EditSchema, { where: whereIs(module), point: HookPoint.OUTPUT, path: one.path, kind });
}
