/** Errors with a stable reason: docs/errors.md has the table. */

import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

const DOMAIN = "cutaway.dev";

const PLAIN_REASONS: Readonly<Partial<Record<Code, string>>> = {
  [Code.Unavailable]: "SERVER_UNREACHABLE",
  [Code.Canceled]: "SERVER_UNREACHABLE",
  [Code.DeadlineExceeded]: "DEADLINE_EXCEEDED",
  [Code.ResourceExhausted]: "REQUEST_TOO_LARGE",
  [Code.Unimplemented]: "NOT_IMPLEMENTED",
  [Code.InvalidArgument]: "MALFORMED_REQUEST",
  [Code.Unauthenticated]: "TOKEN_REQUIRED",
  [Code.PermissionDenied]: "SCOPE_MISSING",
};

/** Any error of a call. Programs branch on `reason`; `message` is for people. */
export class CutawayError extends Error {
  override readonly name = "CutawayError";

  /**
   * @param reason stable: `MODEL_NOT_FOUND`, ...
   * @param message what is wrong, and what would be right.
   * @param field the path of the field at fault in the request; "" if there is none.
   * @param code the status of gRPC.
   * @param retryAfterMs how long to wait before a retry; undefined if it would have the same result.
   */
  constructor(
    readonly reason: string,
    message: string,
    readonly field = "",
    readonly code: Code = Code.InvalidArgument,
    readonly retryAfterMs?: number,
  ) {
    super(message);
  }

  /** Returns the error for whatever a call threw; an `AbortError` of the caller's own signal stays what it is. */
  static from(failure: unknown, signal?: AbortSignal): unknown {
    if (signal?.aborted) return signal.reason;
    if (failure instanceof CutawayError) return failure;
    const found = ConnectError.from(failure);
    // Browsers and Node throw a TypeError where no server answers.
    const code = found.cause instanceof TypeError ? Code.Unavailable : found.code;
    const info = found.findDetails(ErrorInfoSchema).find((each) => each.domain === DOMAIN);
    const violation = found.findDetails(BadRequestSchema)[0]?.fieldViolations[0];
    const delay = found.findDetails(RetryInfoSchema)[0]?.retryDelay;
    const retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
    return new CutawayError(
      info?.reason ?? PLAIN_REASONS[code] ?? "INTERNAL",
      violation?.description ?? found.rawMessage,
      violation?.field ?? "",
      code,
      retryAfterMs,
    );
  }
}
