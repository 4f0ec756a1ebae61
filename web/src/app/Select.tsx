/** One of many, in a list that opens. */

interface Props<T extends string | number> {
  /** What it chooses, where no label beside it says so. */
  readonly label?: string;
  /** Values, each with its words. */
  readonly of: readonly (readonly [T, string])[];
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

/** Lets a person choose one. */
export function Select<T extends string | number>({ label, of, value, onChoose }: Props<T>): preact.JSX.Element {
  return (
    <select
      {...(label ? { "aria-label": label } : {})}
      value={value}
      onChange={({ currentTarget }) => onChoose(of[currentTarget.selectedIndex]?.[0] ?? value)}
    >
      {of.map(([each, words]) => (
        <option key={each} value={each}>
          {words}
        </option>
      ))}
    </select>
  );
}
