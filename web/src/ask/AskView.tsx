/** View 2: a question, and what the model says. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { type Contrast, type Target as TargetMessage, TargetSchema } from "@cutaway/contract/target_pb";
import { alter, asked, changed, complete, contrast, contrastOf, draft, messageOf, model, row } from "../state/index.js";
import { Check, NumberField, Panel, Problem, Select } from "../ui/index.js";
import { Chosen } from "./Chosen.js";
import { History } from "./History.js";
import { Inputs } from "./Inputs.js";
import { Prediction } from "./Prediction.js";
import { Scales, Steer } from "./Steering.js";
import { Writing } from "./Writing.js";
import "./ask.css";

/** The fields of the contract that have a section of their own here. */
const SECTIONS = [
  "tensors",
  "raw",
  "input",
  "target",
  "captures",
  "attributions",
  "input_gradients",
  "edits",
  "generate",
];

/** Shows the question beside its answer. */
export function AskView(): preact.JSX.Element | null {
  const detail = model.value;
  if (detail === undefined) return null;
  const gradients = Boolean(draft.value.inputGradients);
  const wantGradients = (inputGradients: boolean): void => alter({ inputGradients });
  return (
    <div class="ask">
      <div class="question">
        <div class="column">
          <Panel id="input" title="Input">
            <Inputs key={detail.model?.name} detail={detail} />
            <Problem of={["tensors", "raw", "input"]} />
          </Panel>
          <Panel id="about-what" title="About what">
            <Target detail={detail} />
            <Problem of={["target"]} />
            <Check label="Gradient at the input" value={gradients} onChange={wantGradients} />
            <Problem of={["input_gradients"]} />
            <Writing detail={detail} />
            <Problem of={["generate"]} />
          </Panel>
          <Steer key={detail.model?.name} detail={detail} />
        </div>
        <div class="column">
          <Chosen detail={detail} />
        </div>
      </div>
      <div class="answer">
        <Panel id="prediction" title="Prediction">
          {!asked.value && (
            <p class="muted">{complete.value ? "Ask to see it." : "Give the model an input, then ask."}</p>
          )}
          <Problem except={SECTIONS} />
          <Scales />
          {asked.value && (
            <div class={changed.value ? "stale" : ""}>
              <Prediction asked={asked.value} row={row.value} />
            </div>
          )}
        </Panel>
        <History />
      </div>
    </div>
  );
}

type Kind = NonNullable<MessageInitShape<typeof TargetSchema>["kind"]>;

/** Kinds of targets, in words, and what each begins with. */
const KINDS = {
  predictedClass: [
    "the largest element: the predicted class, if there are classes",
    { case: "predictedClass", value: {} },
  ],
  classIndex: ["one element: a class", { case: "classIndex", value: { indices: [0n] } }],
  contrast: ["why one class, and not another", { case: "contrast", value: contrast(0, 1).kind.value as Contrast }],
  topK: ["the largest elements", { case: "topK", value: { k: 2 } }],
  sum: ["the sum of the output", { case: "sum", value: {} }],
  norm: ["the norm of the output", { case: "norm", value: {} }],
} as const satisfies Partial<Record<NonNullable<TargetMessage["kind"]["case"]>, readonly [string, Kind]>>;

/** The most labels that a list has. */
const MOST_LABELS = 5000;

/** Lets a person choose the target. */
export function Target({ detail: { labels } }: { detail: ModelDetail }): preact.JSX.Element {
  const { output = "", kind = { case: undefined } } = messageOf(draft.value).target ?? {};
  const given = kind.case ?? "predictedClass";
  const names = Object.entries(KINDS).map(([name, [words]]) => [name as keyof typeof KINDS, words] as const);
  const pair = contrastOf(messageOf(draft.value).target);
  const isOdd = (kind.case === "classIndex" && kind.value.indices.length !== 1) || (kind.case === "contrast" && !pair);
  const simple = given in KINDS && !isOdd;
  const put = (changed: Kind): void => alter({ target: create(TargetSchema, { output, kind: changed }) });
  const putClass = (index = 0): void => put({ case: "classIndex", value: { indices: [BigInt(index)] } });
  const putCount = (k = 1): void => put({ case: "topK", value: { k } });
  const index = simple && kind.case === "classIndex" ? Number(kind.value.indices[0]) : undefined;
  const classField = (label: string, value: number, onChange: (index?: number) => void): preact.JSX.Element =>
    labels.length > 0 && labels.length <= MOST_LABELS ? (
      <Select label={label} of={[...labels.entries()]} value={value} onChange={onChange} />
    ) : (
      <NumberField label={label} value={value} least={0} whole onChange={onChange} />
    );
  return (
    <div class="target">
      <Select
        label="Explain"
        of={simple ? names : [...names, ["", `${given}, as in the link`] as const]}
        value={simple ? (given as keyof typeof KINDS) : ""}
        onChange={(name) => name && put(KINDS[name][1])}
      />
      {index !== undefined && classField("Class", index, putClass)}
      {pair && classField("Class", pair[0], (one = 0) => alter({ target: contrast(one, pair[1], output) }))}
      {pair && classField("and not", pair[1], (other = 0) => alter({ target: contrast(pair[0], other, output) }))}
      {kind.case === "topK" && (
        <NumberField label="How many" value={kind.value.k} least={1} whole onChange={putCount} />
      )}
    </div>
  );
}
