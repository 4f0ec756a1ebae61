/** Errors of the contract in words, beside the field that is at fault. */

import type { ComponentChildren } from "preact";
import { ask, failure, model } from "../state/index.js";
import { Button } from "./controls.js";

interface FailureProps {
  readonly error: { readonly message: string; readonly reason: string; readonly field: string };
  /** What a person may do about it. */
  readonly children?: ComponentChildren;
}

/** Shows what is wrong, its reason for programs, and the field at fault. */
export function Failure({ error: { message, reason, field }, children }: FailureProps): preact.JSX.Element {
  return (
    <div class="problem" role="alert">
      <p>
        <bdi>{message}</bdi>
      </p>
      <p class="small">
        <code>{reason}</code> {field && <bdi class="mono">{field}</bdi>}
      </p>
      {children}
    </div>
  );
}

type ProblemProps = Readonly<{ of?: readonly string[]; except?: readonly string[] }>;

/** Shows why the last call failed: a failure of the fields that begin with `of`, or of any but those that begin with `except`. */
export function Problem({ of, except = [] }: ProblemProps): preact.JSX.Element | null {
  const problem = failure.value;
  if (problem === undefined) return null;
  const [field = ""] = /^\w*/.exec(problem.field) ?? [];
  if (of ? !of.includes(field) : except.includes(field)) return null;
  return (
    <Failure error={problem}>
      {problem.retryAfterMs !== undefined && model.value && <Button text="Ask again" onClick={() => void ask()} />}
    </Failure>
  );
}
