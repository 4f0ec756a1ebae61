/** Puts a reply in pieces together: a header, chunks of its tensors, and a trailer with their checksums. */

import { entries } from "./arrays.js";
import { crc32c } from "./crc32c.js";
import { CutawayError } from "./errors.js";
import type { InspectResponse } from "./gen/cutaway/v1/inspection_pb.js";
import type { StreamPiece } from "./gen/cutaway/v1/inspection_service_pb.js";
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

/**
 * Returns the reply in `pieces`.
 *
 * @throws CutawayError `INTERNAL` if a piece is missing or damaged.
 */
export async function reassembled(pieces: AsyncIterable<StreamPiece | undefined>): Promise<InspectResponse> {
  let reply: InspectResponse | undefined;
  let tensors: Tensor[] = [];
  let whole = false;
  for await (const piece of pieces) {
    const kind = piece?.kind;
    if (kind?.case === "header" && reply === undefined && kind.value.response !== undefined) {
      reply = kind.value.response;
      tensors = entries(reply).map(({ message }) => message);
      for (const each of tensors) each.data = new Uint8Array(size(each));
    } else if (kind?.case === "chunk" && !whole) {
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

function size({ shape, dataType }: Tensor): number {
  return shape.reduce((product, each) => product * Number(each), 1) * (BYTES[dataType] ?? 1);
}

function damaged(): CutawayError {
  return new CutawayError("INTERNAL", "the reply is damaged, or not whole");
}
