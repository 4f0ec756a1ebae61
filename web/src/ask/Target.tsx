/** The number that gradients and attributions are about. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { type Target as TargetMessage, TargetSchema } from "@cutaway/contract/target_pb";
import { NumberField, Select } from "../ui/controls.js";
import { alter, draft } from "../state/asking.js";
import { messageOf } from "../state/draft.js";

type Kind = NonNullable<MessageInitShape<typeof TargetSchema>["kind"]>;

/** Kinds of targets, in words, and what each begins with. */
const KINDS = {
  predictedClass: [
    "the largest element: the predicted class, if there are classes",
    { case: "predictedClass", value: {} },
  ],
  classIndex: ["one element: a class", { case: "classIndex", value: { indices: [0n] } }],
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
  const simple = given in KINDS && !(kind.case === "classIndex" && kind.value.indices.length !== 1);
  const put = (changed: Kind): void => alter({ target: create(TargetSchema, { output, kind: changed }) });
  const putClass = (index = 0): void => put({ case: "classIndex", value: { indices: [BigInt(index)] } });
  const putCount = (k = 1): void => put({ case: "topK", value: { k } });
  const index = simple && kind.case === "classIndex" ? Number(kind.value.indices[0]) : undefined;
  const listed = labels.length > 0 && labels.length <= MOST_LABELS;
  return (
    <div class="target">
      <Select
        label="Explain"
        of={simple ? names : [...names, ["", `${given}, as in the link`] as const]}
        value={simple ? (given as keyof typeof KINDS) : ""}
        onChoose={(name) => name && put(KINDS[name][1])}
      />
      {index !== undefined && listed && (
        <Select label="Class" of={[...labels.entries()]} value={index} onChoose={putClass} />
      )}
      {index !== undefined && !listed && (
        <NumberField label="Class" value={index} least={0} whole onChange={putClass} />
      )}
      {kind.case === "topK" && (
        <NumberField label="How many" value={kind.value.k} least={1} whole onChange={putCount} />
      )}
    </div>
  );
}
