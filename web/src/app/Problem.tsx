/** Why the last call failed, beside the field that is at fault. */

import { Failure } from "./Failure.js";
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
    <Failure error={problem}>
      {problem.retryAfterMs !== undefined && (
        <button type="button" onClick={() => void ask()}>
          Ask again
        </button>
      )}
    </Failure>
  );
}
