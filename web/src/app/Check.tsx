/** One thing that is, or is not. */

interface Props {
  readonly label: string;
  readonly checked: boolean;
  readonly onCheck: (checked: boolean) => void;
}

/** Lets a person choose. */
export function Check({ label, checked, onCheck }: Props): preact.JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={({ currentTarget }) => onCheck(currentTarget.checked)} />
      {label}
    </label>
  );
}
