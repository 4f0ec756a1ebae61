/** What is to come back from inside: captures and explanations, chosen one by one. */

import type { JsonValue } from "@bufbuild/protobuf";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import type { TargetedEvent } from "preact";
import { editText } from "../edits/edit.js";
import { leavesOf, parameterAt, requestAt } from "../models/places.js";
import { alter, asked, draft, failure, jsonOf, messageOf } from "../state/index.js";
import { Button, Failure, Form, inSnakeCase, Panel, Problem, Select, TextField, useFields } from "../ui/index.js";
import { MethodFields, MethodMenu } from "./MethodFields.js";
import { METHODS, requestFor } from "./methods.js";

/** What stands for a parameter among points, of which it has none. */
const PARAMETER = HookPoint.UNSPECIFIED;

const POINTS: readonly [HookPoint, string][] = [
  [HookPoint.OUTPUT, "output"],
  [HookPoint.GRAD_OUTPUT, "gradient at the output"],
  [HookPoint.INPUT, "input"],
  [HookPoint.GRAD_INPUT, "gradient at the input"],
  [PARAMETER, "gradient of the parameter"],
];

/** Shows what is chosen, and lets a person choose more. */
export function Chosen({ detail }: { detail: ModelDetail }): preact.JSX.Element {
  const { captures, attributions } = messageOf(draft.value);
  const { question, reply } = asked.value ?? {};
  const made = question?.attributions === draft.value.attributions ? (reply?.attributions ?? []) : [];
  const chipOf = (each: CaptureRequest, index: number): Chip => {
    const onRemove = (): void => alter({ captures: captures.toSpliced(index, 1) });
    return { name: each.where.value ?? "", about: pointsText(each), field: `captures[${index}]`, onRemove };
  };
  const put = (changed: typeof attributions): void => alter({ attributions: changed });
  const add = (field: string): void => put([...attributions, requestFor(field, detail, layerFor(field, detail))]);
  return (
    <>
      <datalist id="places">
        {detail.modules.slice(0, 2000).map(({ name }) => name && <option key={name} value={name} />)}
      </datalist>
      <Panel id="captures" title="Look at">
        <Chips of={captures.map(chipOf)} />
        <AddCapture onAdd={(added) => alter({ captures: [...captures, added] })} />
        <Problem of={["captures"]} />
      </Panel>
      <Others />
      <Panel id="explanations" title="Explain by">
        <ul class="methods">
          {attributions.map((each, index) => {
            const field = `attributions[${index}]`;
            const error = made.map(({ message }) => message.error).find((each) => each?.field.startsWith(field));
            return (
              <li key={`${index} of ${attributions.length}`} class={error || atFault(field) ? "fault" : ""}>
                <MethodFields
                  {...{ request: each, inputs: detail.inputs, failed: error !== undefined }}
                  onChange={(changed) => put(attributions.with(index, changed))}
                />
                <Remove what={each.method.case ?? ""} onRemove={() => put(attributions.toSpliced(index, 1))} />
                {error && <Failure error={error} />}
              </li>
            );
          })}
        </ul>
        <MethodMenu label="Add a method" methods={METHODS} onChoose={add} />
        <Problem of={["attributions"]} />
      </Panel>
    </>
  );
}

/** Parts of a question that have a place of their own on this page. */
const PLACED = [
  "model",
  "agreement",
  "inputs",
  "target",
  "captures",
  "attributions",
  "inputGradients",
  "attributionErrorsInPlace",
];

/** What else is in the question: edits, a condition, checks, arguments, ...; each can be taken out. */
function Others(): preact.JSX.Element | null {
  const { edits = [], compare: _, ...others } = draft.value;
  const json = jsonOf(draft.value, false);
  const rest = Object.keys(others).filter((part) => !PLACED.includes(part) && !isUsual(json[part]));
  if (edits.length + rest.length === 0) return null;
  const edited = edits.map((edit, index): Chip => {
    const left = edits.toSpliced(index, 1);
    const onRemove = (): void => alter(left.length ? { edits: left } : { edits: undefined, compare: undefined });
    return { name: editText(edit), field: `edits[${index}]`, onRemove };
  });
  const further = rest.map((part): Chip => {
    const name = `${part}: ${JSON.stringify(json[part]).slice(0, LONGEST)}`;
    return { name, field: inSnakeCase(part), onRemove: () => alter({ [part]: undefined }) };
  });
  return (
    <Panel id="others" title="Also in the question">
      <Chips of={[...edited, ...further]} />
      <Problem of={["edits"]} />
    </Panel>
  );
}

/** How much of another part is shown. */
const LONGEST = 200;

/** Whether a part says what holds without it. */
function isUsual(part: JsonValue | undefined): boolean {
  return [undefined, "{}", '{"mode":"CHECK_MODE_SAME_PASS"}'].includes(JSON.stringify(part));
}

/** Returns the layer that a method begins with, where it was not asked for yet: the last convolution, the
 * embedding of tokens, or the last layer but that of the output. */
function layerFor(field: string, detail: ModelDetail): string {
  const used = messageOf(draft.value).attributions.map(({ method: { case: name, value } }) =>
    name === field && "layer" in value ? value.layer : "",
  );
  const leaves = leavesOf(detail).filter(({ name }) => !used.includes(name));
  const usual =
    leaves.findLast(({ type }) => /^Conv[123]d$/.test(type)) ?? leaves.find(({ type }) => type === "Embedding");
  return (usual ?? leaves.at(-2) ?? leaves.at(-1))?.name ?? "";
}

/** A part of the question that can be taken out, and its field in the request. */
type Chip = Readonly<{ name: string; about?: string; field: string; onRemove: () => void }>;

function Chips({ of }: { of: readonly Chip[] }): preact.JSX.Element {
  return (
    <ul class="chips">
      {of.map(({ name, about, field, onRemove }, index) => (
        <li key={index} class={atFault(field) ? "fault" : ""}>
          <bdi class="mono">{name}</bdi>
          {about && <span class="muted">{about}</span>}
          <Remove what={name} onRemove={onRemove} />
        </li>
      ))}
    </ul>
  );
}

function atFault(field: string): boolean {
  return failure.value?.field.startsWith(field) ?? false;
}

function pointsText({ points, where }: CaptureRequest): string {
  if (where.case === "parameter") return "gradient of the parameter";
  return POINTS.filter(([point]) => points.includes(point))
    .map(([, name]) => name)
    .join(", ");
}

function Remove({ what, onRemove }: { what: string; onRemove: () => void }): preact.JSX.Element {
  const remove = ({ currentTarget }: TargetedEvent<HTMLElement>): void => {
    currentTarget.closest("section")?.querySelector<HTMLElement>("select, input, h2")?.focus();
    onRemove();
  };
  return (
    <button type="button" class="remove" aria-label={`Remove ${what}`} onClick={remove}>
      ×
    </button>
  );
}

function AddCapture({ onAdd }: { onAdd: (added: CaptureRequest) => void }): preact.JSX.Element {
  const [{ module, point }, field] = useFields<{ module: string; point: HookPoint }>({
    module: "",
    point: HookPoint.OUTPUT,
  });
  const add = (): void => {
    const value = module.trim();
    if (value) onAdd(point === PARAMETER ? parameterAt(value) : requestAt(value, point));
    field("module").onChange("");
  };
  const placeholder = point === PARAMETER ? "parameter or glob: conv1.weight, **" : "module, operator or glob";
  return (
    <Form onDone={add}>
      <TextField
        {...{ label: "A module, an operator or a glob", hidden: true, class: "mono", list: "places", placeholder }}
        {...field("module")}
      />
      <Select label="at" of={POINTS} {...field("point")} />
      <Button text="Add" type="submit" />
    </Form>
  );
}
