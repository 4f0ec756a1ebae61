/** Tensors as typed arrays. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { CutawayError } from "./errors.js";
import {
  Compression,
  DataType,
  type NamedTensor,
  type Tensor as Message,
  TensorSchema,
} from "./gen/cutaway/v1/tensor_pb.js";

/** What holds the elements; `Uint8Array` also for truth values, 0 or 1. */
export type TypedArray = Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array;

/** A dense array of numbers. */
export interface Tensor {
  /** The elements, row-major. Those of `FLOAT16` and `BFLOAT16` have 32 bits here; they are rounded when they are sent. */
  readonly data: TypedArray;
  /** Size of each axis, outermost first. */
  readonly shape: readonly number[];
  /** The element type that the server has. */
  readonly dataType: DataType;
}

interface Kind {
  readonly bytes: number;
  readonly read: (bytes: ArrayBuffer) => TypedArray;
  /** How elements are written that have other bytes here. */
  readonly write?: (value: number) => number;
}

const KINDS: Readonly<Partial<Record<DataType, Kind>>> = {
  [DataType.FLOAT16]: {
    bytes: 2,
    read: (bytes) => Float32Array.from(new Uint16Array(bytes), halfToNumber),
    write: numberToHalf,
  },
  [DataType.BFLOAT16]: { bytes: 2, read: widened, write: narrowed },
  [DataType.FLOAT32]: { bytes: 4, read: (bytes) => new Float32Array(bytes) },
  [DataType.FLOAT64]: { bytes: 8, read: (bytes) => new Float64Array(bytes) },
  [DataType.INT8]: { bytes: 1, read: (bytes) => new Int8Array(bytes) },
  [DataType.INT16]: { bytes: 2, read: (bytes) => new Int16Array(bytes) },
  [DataType.INT32]: { bytes: 4, read: (bytes) => new Int32Array(bytes) },
  [DataType.INT64]: { bytes: 8, read: (bytes) => new BigInt64Array(bytes) },
  [DataType.UINT8]: { bytes: 1, read: (bytes) => new Uint8Array(bytes) },
  [DataType.BOOL]: { bytes: 1, read: (bytes) => new Uint8Array(bytes) },
};

const TYPES: readonly [new (...size: never[]) => TypedArray, DataType][] = [
  [Float32Array, DataType.FLOAT32],
  [Float64Array, DataType.FLOAT64],
  [Int8Array, DataType.INT8],
  [Int16Array, DataType.INT16],
  [Int32Array, DataType.INT32],
  [BigInt64Array, DataType.INT64],
  [Uint8Array, DataType.UINT8],
];

/**
 * Makes a tensor of a typed array.
 *
 * @param data the elements, row-major.
 * @param shape size of each axis, outermost first: of an input, the batch.
 * @param dataType another type than the array's own: `DataType.BOOL` for a `Uint8Array` of zeros and ones.
 * @throws CutawayError `TENSOR_SIZE` if the shape has another number of elements.
 */
export function tensor(data: TypedArray, shape: readonly number[], dataType?: DataType): Tensor {
  const own = TYPES.find(([type]) => data instanceof type)?.[1];
  if (own === undefined || !shape.every((size) => Number.isInteger(size) && size >= 0)) {
    throw new CutawayError("INVALID_VALUE", "a tensor has a typed array, and a shape of whole numbers");
  }
  if (elements(shape) !== data.length) {
    throw new CutawayError("TENSOR_SIZE", `${data.length} elements do not have the shape [${shape.join(", ")}]`);
  }
  return { data, shape: [...shape], dataType: dataType ?? own };
}

/** Returns a tensor as a message of the contract. */
export function toMessage({ data: own, shape, dataType }: Tensor): MessageInitShape<typeof TensorSchema> {
  const write = KINDS[dataType]?.write;
  const data = write ? Uint16Array.from(own as ArrayLike<number>, write) : own;
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return { dataType, shape: shape.map(BigInt), data: bytes as Uint8Array<ArrayBuffer> };
}

/**
 * Returns the tensor in a message.
 *
 * @throws CutawayError `INTERNAL` if the message is damaged; `INVALID_VALUE` if it is compressed, which nobody asked for.
 */
export function fromMessage(message: Message): Tensor {
  const kind = KINDS[message.dataType];
  const shape = message.shape.map(Number);
  if (message.compression === Compression.ZSTD) {
    throw new CutawayError("INVALID_VALUE", "this client does not unpack compressed tensors");
  }
  if (kind === undefined || elements(shape) * kind.bytes !== message.data.byteLength) {
    throw new CutawayError("INTERNAL", "the reply is damaged: a tensor's bytes do not match its shape and type");
  }
  // A copy: the bytes of a message begin anywhere, and typed arrays do not.
  return { data: kind.read(message.data.slice().buffer as ArrayBuffer), shape, dataType: message.dataType };
}

/** Returns tensors by name, and nothing by other names: not even `constructor`. */
export function byName(tensors: readonly NamedTensor[]): Record<string, Tensor> {
  const named = tensors.map(({ name, tensor: each }) => [name, fromMessage(each ?? create(TensorSchema))] as const);
  return Object.assign(Object.create(null) as Record<string, Tensor>, Object.fromEntries(named));
}

/** Moves an axis of the tensor in a message to the front. */
export function moveFirst(message: Message, axis: number): void {
  if (axis === 0) return;
  const [size = 1] = message.shape.splice(axis, 1).map(Number);
  const outer = elements(message.shape.slice(0, axis).map(Number));
  const block = message.data.length / Math.max(1, outer * size);
  const moved = new Uint8Array(message.data.length);
  for (let from = 0; from < outer * size; from++) {
    const to = (from % size) * outer + Math.floor(from / size);
    moved.set(message.data.subarray(from * block, (from + 1) * block), to * block);
  }
  message.shape.unshift(BigInt(size));
  message.data = moved;
}

function elements(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

function widened(bytes: ArrayBuffer): Float32Array {
  const wide = new Uint32Array(new Uint16Array(bytes)).map((bits) => bits << 16);
  return new Float32Array(wide.buffer);
}

/** Returns the 16 bits of the nearest bfloat16, an even one of two. */
function narrowed(value: number): number {
  if (Number.isNaN(value)) return 0x7fc0;
  const [bits = 0] = new Uint32Array(Float32Array.of(value).buffer);
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/** Returns the 16 bits of the nearest number of half precision, an even one of two. */
function numberToHalf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  const units = size / 2 ** (exponent - 10);
  const rounded = Math.round(units) - (units % 1 === 0.5 && Math.round(units) % 2 ? 1 : 0);
  return sign + ((exponent + 14) << 10) + rounded; // a carry out of the fraction goes into the exponent
}

function halfToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
