/** Pages of a long list. */

interface Props {
  /** The first that is shown, from 0. */
  readonly first: number;
  /** How many a page has. */
  readonly page: number;
  readonly count: number;
  readonly onTurn: (first: number) => void;
}

/** Turns pages; nothing where one has all. */
export function Pager({ first, page, count, onTurn }: Props): preact.JSX.Element | null {
  if (count <= page) return null;
  return (
    <div class="tools">
      <button disabled={first === 0} onClick={() => onTurn(first - page)}>
        Previous
      </button>
      <span class="muted">
        {first + 1} to {Math.min(first + page, count)} of {count.toLocaleString("en")}
      </span>
      <button disabled={first + page >= count} onClick={() => onTurn(first + page)}>
        Next
      </button>
    </div>
  );
}
