/** The number that gradients and attributions are about. */

import { create } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { type Target as TargetMessage, TargetSchema } from "@cutaway/contract/target_pb";
import { Select } from "../app/Select.js";
import { alter, draft } from "../state/asking.js";
import { messageOf } from "../state/draft.js";

type Kind = TargetMessage["kind"];

const NAMES: readonly (readonly [NonNullable<Kind["case"]>, string])[] = [
  ["predictedClass", "the largest output: the predicted class"],
  ["classIndex", "one output: a class"],
  ["topK", "the largest outputs"],
  ["sum", "the sum of the output"],
  ["norm", "the norm of the output"],
];

/** Lets a person choose the target. */
export function Target({ detail }: { detail: ModelDetail }): preact.JSX.Element {
  const kind = messageOf(draft.value).target?.kind ?? { case: "predictedClass", value: {} };
  const put = (changed: Parameters<typeof create<typeof TargetSchema>>[1]): void => {
    alter({ target: create(TargetSchema, changed) });
  };
  const choose = (name: string): void => {
    if (name === "classIndex") put({ kind: { case: name, value: { indices: [0n] } } });
    else if (name === "topK") put({ kind: { case: name, value: { k: 2 } } });
    else if (name === "sum" || name === "norm" || name === "predictedClass") put({ kind: { case: name, value: {} } });
  };
  const chooseClass = (index: number): void =>
    put({ kind: { case: "classIndex", value: { indices: [BigInt(index)] } } });
  const given = kind.case ?? "predictedClass";
  const known = NAMES.some(([name]) => name === kind.case);
  return (
    <div class="target">
      <label>
        <span>Explain</span>
        <Select of={known ? NAMES : [...NAMES, [given, `${given}, as in the link`]]} value={given} onChoose={choose} />
      </label>
      {kind.case === "classIndex" && (
        <label>
          <span>Class</span>
          {detail.labels.length ? (
            <Select
              of={detail.labels.map((label, index) => [index, label] as const)}
              value={Number(kind.value.indices[0])}
              onChoose={chooseClass}
            />
          ) : (
            <input
              type="number"
              min={0}
              value={String(kind.value.indices[0])}
              onChange={({ currentTarget }) => chooseClass(currentTarget.valueAsNumber || 0)}
            />
          )}
        </label>
      )}
      {kind.case === "topK" && (
        <label>
          <span>How many</span>
          <input
            type="number"
            min={1}
            value={kind.value.k}
            onChange={({ currentTarget }) =>
              put({ kind: { case: "topK", value: { k: Number(currentTarget.value) || 1 } } })
            }
          />
        </label>
      )}
    </div>
  );
}
