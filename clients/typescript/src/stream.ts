/** A reply that arrives part by part. */

import { Code } from "@connectrpc/connect";
import { CutawayError } from "./errors.js";
import type { StreamPiece } from "./gen/cutaway/v1/inspection_service_pb.js";
import { type Form, reassembled } from "./reassembly.js";
import { inspection, type Inspection } from "./results.js";

/** Sends a request; `signal` ends the call. */
export type Ask = (signal: AbortSignal) => AsyncIterable<StreamPiece | undefined>;

/**
 * A reply that arrives part by part.
 *
 * Iterate over it for the result so far, whenever it has grown. What it yielded is right, even if the call fails later.
 * Leaving the loop before its end ends the call. `result` waits for the whole.
 */
export class ReplyStream implements AsyncIterable<Inspection> {
  readonly #parts: AsyncGenerator<Inspection, void>;
  #whole: Inspection | undefined;
  #failure: unknown = new CutawayError("INTERNAL", "the stream was left before its end", "", Code.Internal);

  /** `Client.inspectStream` makes it; `signal` is that of the caller. */
  constructor(ask: Ask, form: Form, signal?: AbortSignal) {
    this.#parts = this.#arriving(ask, form, signal);
  }

  /** Yields the result so far. */
  [Symbol.asyncIterator](): AsyncGenerator<Inspection, void> {
    return this.#parts;
  }

  /**
   * Waits for the rest of the reply, and returns the whole result.
   *
   * @throws CutawayError with a stable reason, and the field at fault.
   */
  async result(): Promise<Inspection> {
    while (!(await this.#parts.next()).done);
    if (this.#whole === undefined) throw this.#failure;
    return this.#whole;
  }

  /** Asks once more if the reply is lost before its first part, as the Python client does. */
  async *#arriving(ask: Ask, form: Form, signal?: AbortSignal): AsyncGenerator<Inspection, void> {
    const own = new AbortController();
    const abort = (): void => own.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    try {
      for (let again = true; this.#whole === undefined;) {
        try {
          const replies = reassembled(ask(own.signal), form);
          let part = await replies.next();
          for (; !part.done; part = await replies.next()) {
            again = false;
            yield inspection(part.value);
          }
          this.#whole = inspection(part.value);
        } catch (failure) {
          const told = CutawayError.from(failure, signal);
          if (!again || !(told instanceof CutawayError) || told.code !== Code.Unavailable) throw (this.#failure = told);
          again = false;
          await new Promise((resume) => setTimeout(resume, told.retryAfterMs ?? 0));
        }
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      abort();
    }
  }
}
