/** What a component waits for. */

import { useEffect, useState } from "preact/hooks";

type Loaded<T> = Readonly<{ value?: T; failure?: unknown }>;

/** Returns what `load` came to for `of`, or why it failed; nothing before that, and nothing of what was loaded before. */
export function useLoaded<T>(load: () => Promise<T> | undefined, of: readonly unknown[]): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T> & { of: readonly unknown[] }>();
  useEffect(() => {
    const running = new AbortController();
    const keep = (one: Loaded<T>): void => {
      if (!running.signal.aborted) setLoaded({ ...one, of });
    };
    load()?.then(
      (value) => keep({ value }),
      (failure: unknown) => keep({ failure }),
    );
    return (): void => running.abort();
  }, of);
  return loaded?.of.every((each, at) => each === of[at]) ? loaded : {};
}
