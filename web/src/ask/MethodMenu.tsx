/** Methods to choose from, by what they explain. */

import type { Method } from "./methods.js";

interface Props {
  readonly label: string;
  readonly methods: readonly Method[];
  /** Takes the field of a method. */
  readonly onChoose: (field: string) => void;
}

/** Lets a person choose one after another. */
export function MethodMenu({ label, methods, onChoose }: Props): preact.JSX.Element {
  return (
    <select aria-label={label} value="" onChange={({ currentTarget }) => onChoose(currentTarget.value)}>
      <option value="">{label}…</option>
      {[...new Set(methods.map(({ of }) => of))].map((of) => (
        <optgroup key={of} label={`Explains ${of}`}>
          {methods.map((each) => each.of === of && <option value={each.field}>{each.name}</option>)}
        </optgroup>
      ))}
    </select>
  );
}
