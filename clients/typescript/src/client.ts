/** The client: typed arrays in, typed arrays out. */

import { type Client as Calls, Code, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { CutawayError } from "./errors.js";
import type { InspectRequest } from "./gen/cutaway/v1/inspection_pb.js";
import { InspectionService, type StreamPiece, type StreamProgress } from "./gen/cutaway/v1/inspection_service_pb.js";
import type { Model, ModelDetail } from "./gen/cutaway/v1/model_pb.js";
import { type Question, requestOf } from "./question.js";
import type { Form } from "./reassembly.js";
import { inspection, type Inspection } from "./results.js";
import { ReplyStream } from "./stream.js";

/** How to call. */
export interface CallOptions {
  /** Milliseconds that the call may take; the client's, by default. */
  timeoutMs?: number;
  /** Ends the call. */
  signal?: AbortSignal;
}

/** How to call an inspection. */
export interface InspectOptions extends CallOptions {
  /** True receives the reply in pieces; undefined only if it is too large for one message. The result is the same. */
  stream?: boolean;
  /** Takes how far the attributions are, if they take more than a second. */
  onProgress?: (progress: StreamProgress) => void;
}

/** How to connect. */
export interface ClientOptions {
  /** The caller's token; sent to another machine only by https. */
  token?: string;
  /** Milliseconds that a call may take, unless it says otherwise. Default: 60,000. */
  timeoutMs?: number;
}

/** A connection to the HTTP address of a server. */
export class Client {
  readonly #calls: Calls<typeof InspectionService>;

  /**
   * @param url of `cutaway serve --http`: `http://127.0.0.1:8080`.
   * @throws CutawayError `TOKEN_EXPOSED` if the token would be sent in plaintext to another machine.
   */
  constructor(url: string | URL, { token, timeoutMs = 60_000 }: ClientOptions = {}) {
    const { protocol, hostname } = new URL(url);
    if (token !== undefined && protocol !== "https:" && !["localhost", "127.0.0.1", "[::1]"].includes(hostname)) {
      throw new CutawayError("TOKEN_EXPOSED", "a token is sent to another machine only by https", "token");
    }
    const authorized: Interceptor = (next) => (request) => {
      if (token !== undefined) request.header.set("authorization", `Bearer ${token}`);
      return next(request);
    };
    const baseUrl = String(url).replace(/\/$/, "");
    this.#calls = createClient(
      InspectionService,
      createConnectTransport({
        baseUrl,
        useBinaryFormat: true,
        interceptors: [authorized],
        defaultTimeoutMs: timeoutMs,
      }),
    );
  }

  /** Returns every model that is served, by name and version. */
  async models(options: CallOptions = {}): Promise<Model[]> {
    return this.#told(options, async () => {
      const models: Model[] = [];
      let pageToken = "";
      do {
        const page = await this.#calls.listModels({ pageToken }, options);
        models.push(...page.models);
        pageToken = page.nextPageToken;
      } while (pageToken);
      return models;
    });
  }

  /**
   * Returns the inputs, outputs and module tree of a model; with `operators` the operators in it, with `example` the
   * model's own example, and with `dataFlow` which part gave a tensor to which in a pass of that example.
   */
  async model(
    model: string,
    {
      operators = false,
      example = false,
      dataFlow = false,
      ...options
    }: CallOptions & { operators?: boolean; example?: boolean; dataFlow?: boolean } = {},
  ): Promise<ModelDetail> {
    return this.#told(options, async () => {
      const { model: detail } = await this.#calls.getModel({ model, operators, example, dataFlow }, options);
      if (detail === undefined) throw new CutawayError("INTERNAL", "the reply is damaged", "", Code.Internal);
      return detail;
    });
  }

  /**
   * Runs a model on inputs and returns its predictions, with what else is asked for.
   *
   * @throws CutawayError with a stable reason, and the field at fault.
   */
  async inspect(question: Question, { stream, onProgress, ...options }: InspectOptions = {}): Promise<Inspection> {
    return this.#told(options, async () => {
      const request = requestOf(question);
      const inParts = onProgress !== undefined;
      if (stream || inParts) return this.#streamed(request, options, { inParts, onProgress }).result();
      try {
        return inspection(await this.#calls.inspect(request, options));
      } catch (failure) {
        const told = CutawayError.from(failure, options.signal);
        const tooLarge = told instanceof CutawayError && told.reason === "REPLY_TOO_LARGE";
        if (!tooLarge || stream === false || request.options?.maxReplyBytes) throw told;
        return this.#streamed(request, options, { inParts }).result();
      }
    });
  }

  /**
   * Does what `inspect` does, and returns the reply as it arrives: with a text token by token, else predictions, captures
   * and gradients first, then with one attribution more each time.
   *
   * The request is sent, and its errors are thrown, when the first part is read.
   */
  inspectStream(question: Question, { onProgress, ...options }: Omit<InspectOptions, "stream"> = {}): ReplyStream {
    return this.#streamed(requestOf(question), options, { inParts: true, onProgress });
  }

  #streamed(request: InspectRequest, { signal, ...options }: CallOptions, form: Form): ReplyStream {
    const ask = (own: AbortSignal): AsyncIterable<StreamPiece | undefined> =>
      pieces(this.#calls.inspectStream({ request, inParts: form.inParts }, { ...options, signal: own }));
    return new ReplyStream(ask, form, signal);
  }

  /** Returns what `ask` returns; raises errors of the contract. */
  async #told<T>({ signal }: CallOptions, ask: () => Promise<T>): Promise<T> {
    try {
      return await ask();
    } catch (failure) {
      throw CutawayError.from(failure, signal);
    }
  }
}

async function* pieces<T>(replies: AsyncIterable<{ piece?: T }>): AsyncGenerator<T | undefined> {
  for await (const { piece } of replies) yield piece;
}
