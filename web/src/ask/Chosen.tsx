/** What is to come back from inside: captures and explanations, chosen one by one. */

import { Panel } from "../ui/parts.js";
import { useState } from "preact/hooks";
import type { JsonValue } from "@bufbuild/protobuf";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { Failure, Problem } from "../ui/problems.js";
import { Button, Select, TextField } from "../ui/controls.js";
import { leavesOf, parameterAt, requestAt } from "../models/places.js";
import { alter, asked, draft, failure } from "../state/asking.js";
import { jsonOf, messageOf } from "../state/draft.js";
import { inSnakeCase } from "../ui/text.js";
import { editText } from "../edits/edit.js";
import { METHODS, requestFor } from "./methods.js";
import { MethodMenu, MethodFields } from "./MethodFields.js";

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
  return (
    <>
      <datalist id="places">
        {detail.modules.slice(0, 2000).map(({ name }) => name && <option key={name} value={name} />)}
      </datalist>
      <Panel id="captures" title="Look at">
        <Chips
          of={captures.map((each, index) => ({
            name: each.where.value ?? "",
            about: pointsText(each),
            field: `captures[${index}]`,
            onRemove: () => alter({ captures: captures.toSpliced(index, 1) }),
          }))}
        />
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
                  request={each}
                  inputs={detail.inputs}
                  failed={error !== undefined}
                  onChange={(changed) => alter({ attributions: attributions.with(index, changed) })}
                />
                <Remove
                  what={each.method.case ?? ""}
                  onRemove={() => alter({ attributions: attributions.toSpliced(index, 1) })}
                />
                {error && <Failure error={error} />}
              </li>
            );
          })}
        </ul>
        <MethodMenu
          label="Add a method"
          methods={METHODS}
          onChoose={(field) =>
            alter({ attributions: [...attributions, requestFor(field, detail, layerFor(field, detail))] })
          }
        />
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
  return (
    <button
      type="button"
      class="remove"
      aria-label={`Remove ${what}`}
      onClick={({ currentTarget }) => {
        currentTarget.closest("section")?.querySelector<HTMLElement>("select, input, h2")?.focus();
        onRemove();
      }}
    >
      ×
    </button>
  );
}

function AddCapture({ onAdd }: { onAdd: (added: CaptureRequest) => void }): preact.JSX.Element {
  const [module, setModule] = useState("");
  const [point, setPoint] = useState<HookPoint>(HookPoint.OUTPUT);
  const add = (event: SubmitEvent): void => {
    event.preventDefault();
    const value = module.trim();
    if (value) onAdd(point === PARAMETER ? parameterAt(value) : requestAt(value, point));
    setModule("");
  };
  return (
    <form class="tools" onSubmit={add}>
      <TextField
        label="A module, an operator or a glob"
        hidden
        class="mono"
        type="text"
        list="places"
        placeholder={point === PARAMETER ? "parameter or glob: conv1.weight, **" : "module, operator or glob"}
        value={module}
        onText={setModule}
      />
      <Select label="at" of={POINTS} value={point} onChoose={setPoint} />
      <Button text="Add" type="submit" />
    </form>
  );
}
