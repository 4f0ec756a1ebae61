/** What a component waits for. */

import type { CutawayError } from "@cutaway/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { note } from "../state/index.js";

/** What a call came to, or why it failed; nothing before that. `busy` is whether it runs, and `of` what it is about. */
type Called<T> = Readonly<{ value?: T; failure?: CutawayError; busy: boolean; of: readonly unknown[] }>;

/** Returns how a call stands, and what starts another one, the only one that counts from then on; or ends it. */
export function useCall<T>(): [Called<T>, (call?: Promise<T>, of?: readonly unknown[]) => void] {
  const [state, setState] = useState<Called<T>>({ busy: false, of: [] });
  const latest = useRef<Promise<T>>(undefined);
  const start = (call?: Promise<T>, of: readonly unknown[] = []): void => {
    latest.current = call;
    const keep = (one: Pick<Called<T>, "value" | "failure">, busy = false): void => {
      if (latest.current === call) setState({ ...one, busy, of });
    };
    keep({}, call !== undefined);
    call?.then(
      (value) => keep({ value }),
      (failure: unknown) => keep({ failure: note(failure) }),
    );
  };
  return [state, start];
}

/** Returns how the call of `load` stands that is about `of`; nothing of one that was about something else. */
export function useLoaded<T>(load: () => Promise<T> | undefined, of: readonly unknown[]): Partial<Called<T>> {
  const [called, start] = useCall<T>();
  useEffect(() => start(load(), of), of);
  return called.of.length && called.of.every((each, at) => each === of[at]) ? called : {};
}
