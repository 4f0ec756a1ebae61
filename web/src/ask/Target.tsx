/** The number that gradients and attributions are about. */

import { create } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { type Target as TargetMessage, TargetSchema } from "@cutaway/contract/target_pb";
import { alter, draft } from "../state/asking.js";
import { messageOf } from "../state/draft.js";

type Kind = TargetMessage["kind"];

const NAMES: readonly [NonNullable<Kind["case"]>, string][] = [
  ["predictedClass", "the predicted class"],
  ["classIndex", "a class"],
  ["topK", "the largest classes"],
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
  const known = NAMES.some(([name]) => name === kind.case);
  return (
    <div class="target">
      <label>
        <span>Explain</span>
        <select value={kind.case} onChange={({ currentTarget }) => choose(currentTarget.value)}>
          {NAMES.map(([name, words]) => (
            <option key={name} value={name}>
              {words}
            </option>
          ))}
          {!known && <option value={kind.case}>{kind.case}, as in the link</option>}
        </select>
      </label>
      {kind.case === "classIndex" && (
        <label>
          <span>Class</span>
          {detail.labels.length ? (
            <select
              value={String(kind.value.indices[0])}
              onChange={({ currentTarget }) =>
                put({ kind: { case: "classIndex", value: { indices: [BigInt(currentTarget.value)] } } })
              }
            >
              {detail.labels.map((label, index) => (
                <option key={index} value={index}>
                  {label}
                </option>
              ))}
            </select>
          ) : (
            <input
              type="number"
              min={0}
              value={String(kind.value.indices[0])}
              onChange={({ currentTarget }) =>
                put({ kind: { case: "classIndex", value: { indices: [BigInt(currentTarget.value || 0)] } } })
              }
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
