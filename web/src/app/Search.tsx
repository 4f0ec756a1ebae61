/** A field to search a list by, with how many were found. */

interface Props {
  readonly hint: string;
  readonly value: string;
  /** What there is one of, and what there are many of. */
  readonly words: readonly [string, string];
  readonly found: number;
  readonly onSearch: (text: string) => void;
}

/** Lets a person search. */
export function Search({ hint, value, words, found, onSearch }: Props): preact.JSX.Element {
  return (
    <>
      <label class="grow">
        <span class="hidden">Search</span>
        <input
          type="search"
          placeholder={hint}
          value={value}
          onInput={({ currentTarget }) => onSearch(currentTarget.value)}
        />
      </label>
      <span class="muted count" role="status">
        {found.toLocaleString("en")} {words[found === 1 ? 0 : 1]}
      </span>
    </>
  );
}
