/** An error of the contract in words. */

import type { ComponentChildren } from "preact";

interface Props {
  readonly error: { readonly message: string; readonly reason: string; readonly field: string };
  /** What a person may do about it. */
  readonly children?: ComponentChildren;
}

/** Shows what is wrong, its reason for programs, and the field at fault. */
export function Failure({ error: { message, reason, field }, children }: Props): preact.JSX.Element {
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
