/** One of a few, side by side. */

import { useId } from "preact/hooks";

interface Props<T extends string> {
  readonly label: string;
  readonly of: readonly T[];
  readonly names: Readonly<Record<T, string>>;
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

/** Lets a person choose one. */
export function Choice<T extends string>({ label, of, names, value, onChoose }: Props<T>): preact.JSX.Element {
  const name = useId();
  return (
    <div class="choice" role="radiogroup" aria-label={label}>
      {of.map((each) => (
        <label key={each}>
          <input type="radio" name={name} checked={each === value} onChange={() => onChoose(each)} />
          <span>{names[each]}</span>
        </label>
      ))}
    </div>
  );
}
