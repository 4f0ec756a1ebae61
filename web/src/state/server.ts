/** The server: whether it answers, who asks it, and which models it has. */

import { Client, CutawayError, type Model } from "@cutaway/client";
import { computed, signal } from "@preact/signals";

/** How it stands with the server. */
export type Standing =
  | { readonly kind: "connecting" | "ready" }
  | { readonly kind: "lost" | "refused" | "failed"; readonly failure: CutawayError };

/** How it stands with the server. */
export const standing = signal<Standing>({ kind: "connecting" });

/** Every model that is served to this caller. */
export const models = signal<readonly Model[]>([]);

/** The caller's token; in memory only. */
export const token = signal("");

/** The address of the server that this page comes from. */
export const HOME = new URL(".", globalThis.location.href);
const LONGEST_CALL_MS = 600_000;
const HEARTBEAT_MS = 4000;
const RETRY_MS = 1000;

/** Calls the server that this page comes from. */
export const client = computed(
  () => new Client(HOME, { timeoutMs: LONGEST_CALL_MS, ...(token.value ? { token: token.value } : {}) }),
);

/** Reads the list of models, and so finds out whether the server answers. */
export async function connect(): Promise<void> {
  try {
    models.value = await client.value.models();
    standing.value = { kind: "ready" };
  } catch (failure) {
    note(failure);
  }
}

/** Uses another token; `connect` tells whether it is known. */
export async function enter(given: string): Promise<void> {
  token.value = given;
  standing.value = { kind: "connecting" };
  await connect();
}

/** Takes a failure as news of the server, if it is that; returns it as an error of the contract. */
export function note(failure: unknown): CutawayError {
  const error =
    failure instanceof CutawayError
      ? failure
      : new CutawayError("INTERNAL", failure instanceof Error ? failure.message : String(failure));
  if (error.reason === "SERVER_UNREACHABLE") standing.value = { kind: "lost", failure: error };
  else if (/^TOKEN_/.test(error.reason)) standing.value = { kind: "refused", failure: error };
  else if (standing.value.kind === "connecting") standing.value = { kind: "failed", failure: error };
  return error;
}

/** Watches the server: sees that it is gone, and comes back by itself when it is there again. */
export function watch(): void {
  const look = async (): Promise<void> => {
    if (standing.value.kind === "lost") await connect();
    else if (standing.value.kind === "ready" && !document.hidden && !(await reached()))
      note(new CutawayError("SERVER_UNREACHABLE", "the server does not answer"));
    setTimeout(() => void look(), standing.value.kind === "lost" ? RETRY_MS : HEARTBEAT_MS);
  };
  setTimeout(() => void look(), HEARTBEAT_MS);
}

async function reached(): Promise<boolean> {
  const signal = AbortSignal.timeout(3 * HEARTBEAT_MS);
  const reply = await fetch(HOME, { method: "HEAD", cache: "no-store", signal }).catch(() => undefined);
  return reply !== undefined;
}
