/** Why the last call failed, beside the field that is at fault. */

import { ask, failure } from "../state/asking.js";

/** Shows a failure of the fields that begin with `of`, or of any but those that begin with `except`. */
export function Problem({
  of,
  except,
}: {
  of?: readonly string[];
  except?: readonly string[];
}): preact.JSX.Element | null {
  const problem = failure.value;
  if (problem === undefined) return null;
  const isAbout = (fields: readonly string[]): boolean =>
    fields.some((each) => /^\w*/.exec(problem.field)?.[0] === each);
  if (of ? !isAbout(of) : isAbout(except ?? [])) return null;
  return (
    <div class="problem" role="alert">
      <p>
        <bdi>{problem.message}</bdi>
      </p>
      <p class="small">
        <code>{problem.reason}</code> {problem.field && <bdi class="mono">{problem.field}</bdi>}
      </p>
      {problem.retryAfterMs !== undefined && (
        <button type="button" onClick={() => void ask()}>
          Ask again
        </button>
      )}
    </div>
  );
}
