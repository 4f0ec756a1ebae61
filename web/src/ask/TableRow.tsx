/** One row of a table: a number for each feature, typed, or pasted from a spreadsheet. */

import type { Tensor } from "@cutaway/client";
import { elements, numbers, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

interface Props {
  readonly spec: InputSpec;
  readonly value: Tensor | undefined;
  readonly onChange: (value: Tensor) => void;
}

/** Takes a number for each feature. */
export function TableRow({ spec, value = zeros(spec), onChange }: Props): preact.JSX.Element {
  const values = elements(value).slice(0, Number(spec.shape[1]));
  const put = (changed: readonly number[]): void => onChange(numbers(changed, [1, values.length], spec.dataType));
  const paste = (event: ClipboardEvent, index: number): void => {
    const pasted = (event.clipboardData?.getData("text") ?? "")
      .split(/[\s,;]+/)
      .filter((each) => each !== "")
      .map(Number);
    if (pasted.length < 2 || !pasted.every(Number.isFinite)) return;
    event.preventDefault();
    put(values.map((each, at) => pasted[at - index] ?? each));
  };
  return (
    <div class="features">
      {values.map((each, index) => (
        <label key={index}>
          <bdi>{spec.featureNames[index] ?? `feature ${index}`}</bdi>
          <input
            type="number"
            step="any"
            value={each}
            onPaste={(event) => paste(event, index)}
            onChange={({ currentTarget }) => put(values.with(index, currentTarget.valueAsNumber || 0))}
          />
        </label>
      ))}
    </div>
  );
}
