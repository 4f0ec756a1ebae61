/** One row of a table: a number for each feature, typed, or pasted from a spreadsheet. */

import type { Tensor } from "@cutaway/client";
import { fits, NumberField } from "../ui/controls.js";
import { row } from "../state/asking.js";
import { elements, numbers, rangeOf, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

type Props = Readonly<{ spec: InputSpec; value: Tensor | undefined; onChange: (value: Tensor) => void }>;

/** Takes a number for each feature of the example that is shown; others stay as they are. */
export function TableRow({ spec, value = zeros(spec), onChange }: Props): preact.JSX.Element {
  const [rows = 1, width = 0] = value.shape;
  const begin = Math.min(row.value, rows - 1) * width;
  const all = elements(value);
  const put = (at: number, changed: readonly number[]): void =>
    onChange(numbers(all.toSpliced(begin + at, changed.length, ...changed), value.shape, spec.dataType));
  const paste = (event: ClipboardEvent, at: number): void => {
    const pasted = (event.clipboardData?.getData("text").match(/[^\s,;]+/g) ?? []).map(Number);
    if (pasted.length < 2 || !pasted.every((each) => fits(each, rangeOf(spec.dataType)))) return;
    event.preventDefault();
    put(at, pasted.slice(0, width - at));
  };
  return (
    <div class="features">
      {all.slice(begin, begin + width).map((each, at) => (
        <div key={`${begin} ${at}`} onPaste={(event) => paste(event, at)}>
          <NumberField
            label={<bdi>{spec.featureNames[at] ?? `feature ${at}`}</bdi>}
            value={each}
            {...rangeOf(spec.dataType)}
            onChange={(number = 0) => put(at, [number])}
          />
        </div>
      ))}
    </div>
  );
}
