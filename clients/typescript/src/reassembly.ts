/** Puts a reply in pieces together: headers, each with the chunks of its tensors, and a trailer with their checksums. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { entries } from "./arrays.js";
import { crc32c } from "./crc32c.js";
import { CutawayError } from "./errors.js";
import type { Capture } from "./gen/cutaway/v1/capture_pb.js";
import { type InspectResponse, InspectResponseSchema } from "./gen/cutaway/v1/inspection_pb.js";
import type { StreamPiece, StreamProgress } from "./gen/cutaway/v1/inspection_service_pb.js";
import { Compression, DataType, type Tensor } from "./gen/cutaway/v1/tensor_pb.js";

const BYTES: Readonly<Partial<Record<DataType, number>>> = {
  [DataType.FLOAT64]: 8,
  [DataType.INT64]: 8,
  [DataType.FLOAT32]: 4,
  [DataType.INT32]: 4,
  [DataType.FLOAT16]: 2,
  [DataType.BFLOAT16]: 2,
  [DataType.INT16]: 2,
};

/** How a reply comes. */
export interface Form {
  /** Whether it may have several parts. */
  readonly inParts: boolean;
  /** Takes how far the attributions are. */
  readonly onProgress?: ((progress: StreamProgress) => void) | undefined;
}

/**
 * Yields the reply in `pieces` whenever a part of it is complete, as far as it is, and returns the whole.
 *
 * @throws CutawayError `INTERNAL` if a piece is missing or damaged; what came before is right.
 */
export async function* reassembled(
  pieces: AsyncIterable<StreamPiece | undefined>,
  { inParts, onProgress }: Form,
): AsyncGenerator<InspectResponse, InspectResponse> {
  let reply: InspectResponse | undefined;
  const tensors: Tensor[] = [];
  let missing = 0; // bytes of this part
  let whole = false;
  for await (const piece of pieces) {
    const kind = piece?.kind;
    if (kind?.case === "header" && (reply === undefined || inParts) && missing === 0 && kind.value.response && !whole) {
      const part = kind.value.response;
      const added = entries(part).map(({ message }) => message);
      for (const each of added) missing += (each.data = new Uint8Array(size(each))).length;
      tensors.push(...added);
      reply = reply === undefined ? part : joined(reply, part);
      if (missing === 0) yield reply;
    } else if (kind?.case === "progress" && inParts && !whole) {
      onProgress?.(kind.value);
    } else if (kind?.case === "chunk" && reply !== undefined && !whole) {
      const { tensor, offset, data, compression } = kind.value;
      const target = tensors[tensor];
      if (
        target === undefined ||
        compression === Compression.ZSTD ||
        Number(offset) + data.length > target.data.length
      ) {
        throw damaged();
      }
      target.data.set(data, Number(offset));
      missing -= data.length;
      if (missing === 0) yield reply;
    } else if (kind?.case === "trailer" && reply !== undefined) {
      const sums = kind.value.crc32c;
      if (sums.length !== tensors.length || !tensors.every(({ data }, number) => crc32c(data) === sums[number])) {
        throw damaged();
      }
      whole = true;
    } else {
      throw damaged();
    }
  }
  if (reply === undefined || !whole) throw damaged();
  return reply;
}

/** Returns a reply with the next part of it. */
function joined(reply: InspectResponse, part: InspectResponse): InspectResponse {
  const fields = InspectResponseSchema.fields.map(({ localName, fieldKind }) => {
    const [before, added] = [reply, part].map((each) => (each as unknown as Record<string, unknown>)[localName]);
    return [localName, fieldKind === "list" ? [...(before as unknown[]), ...(added as unknown[])] : (added ?? before)];
  });
  const captures = withCalls(reply.captures, part.captures);
  return create(InspectResponseSchema, {
    ...(Object.fromEntries(fields) as MessageInitShape<typeof InspectResponseSchema>),
    captures,
  });
}

/** Returns captures with those of the next part: of a place that was captured before, further calls of it. */
function withCalls(captures: readonly Capture[], added: readonly Capture[]): Capture[] {
  const at = new Map(captures.map((each, number) => [`${each.point} ${each.module}`, number]));
  const found = [...captures];
  for (const each of added) {
    const number = at.get(`${each.point} ${each.module}`);
    const before = number === undefined ? undefined : found[number];
    if (number === undefined || before === undefined) found.push(each);
    else found[number] = { ...before, calls: [...before.calls, ...each.calls] };
  }
  return found;
}

function size({ shape, dataType }: Tensor): number {
  return shape.reduce((product, each) => product * Number(each), 1) * (BYTES[dataType] ?? 1);
}

function damaged(): CutawayError {
  return new CutawayError("INTERNAL", "the reply is damaged, or not whole");
}
