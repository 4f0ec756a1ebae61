/** Tensors from what people have: lists of numbers, NPY files. */

import { DataType, tensor, type Tensor, type TypedArray } from "@cutaway/client";

type Nested = number | boolean | readonly Nested[];

const ARRAYS: Readonly<Partial<Record<DataType, (values: readonly number[]) => TypedArray>>> = {
  [DataType.FLOAT64]: (values) => Float64Array.from(values),
  [DataType.INT8]: (values) => Int8Array.from(values),
  [DataType.INT16]: (values) => Int16Array.from(values),
  [DataType.INT32]: (values) => Int32Array.from(values),
  [DataType.INT64]: (values) => BigInt64Array.from(values, (each) => BigInt(Math.trunc(each))),
  [DataType.UINT8]: (values) => Uint8Array.from(values),
  [DataType.BOOL]: (values) => Uint8Array.from(values, (each) => (each ? 1 : 0)),
};

/** Returns a tensor of numbers in the type that an input has; `FLOAT32` where it says none, or half precision. */
export function numbers(values: readonly number[], shape: readonly number[], type: DataType): Tensor {
  const make = ARRAYS[type];
  return make
    ? tensor(make(values), shape, type === DataType.BOOL ? type : undefined)
    : tensor(Float32Array.from(values), shape);
}

/** Returns the elements of a tensor as plain numbers. */
export function elements({ data }: Tensor): number[] {
  return Array.from(data as ArrayLike<number | bigint>, Number);
}

/**
 * Reads nested lists: `[[0, 1], [2, 3]]`, whose outermost axis is the batch.
 *
 * @throws Error that says what is wrong.
 */
export function fromLists(text: string, type: DataType): Tensor {
  const nested = JSON.parse(text) as Nested;
  const shape: number[] = [];
  for (let inside: Nested | undefined = nested; Array.isArray(inside); inside = (inside as readonly Nested[])[0]) {
    shape.push((inside as readonly Nested[]).length);
  }
  const values: number[] = [];
  flatten(nested, shape, values);
  return numbers(values, shape, type);
}

function flatten(nested: Nested, shape: readonly number[], into: number[]): void {
  const [size, ...rest] = shape;
  if (size === undefined) {
    if (typeof nested !== "number" && typeof nested !== "boolean") throw new Error("lists hold numbers only");
    into.push(Number(nested));
  } else if (!Array.isArray(nested) || nested.length !== size) {
    throw new Error("the lists of one axis differ in length");
  } else {
    for (const each of nested as readonly Nested[]) flatten(each, rest, into);
  }
}

const NPY: Readonly<Record<string, [(bytes: ArrayBuffer) => TypedArray, DataType?]>> = {
  "<f4": [(bytes) => new Float32Array(bytes)],
  "<f8": [(bytes) => new Float64Array(bytes)],
  "|i1": [(bytes) => new Int8Array(bytes)],
  "<i2": [(bytes) => new Int16Array(bytes)],
  "<i4": [(bytes) => new Int32Array(bytes)],
  "<i8": [(bytes) => new BigInt64Array(bytes)],
  "|u1": [(bytes) => new Uint8Array(bytes)],
  "|b1": [(bytes) => new Uint8Array(bytes), DataType.BOOL],
};

/**
 * Reads an NPY file.
 *
 * @throws Error that says what is wrong.
 */
export function fromNpy(bytes: Uint8Array): Tensor {
  if (bytes[0] !== 0x93 || new TextDecoder().decode(bytes.slice(1, 6)) !== "NUMPY")
    throw new Error("this is no NPY file");
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const wide = (bytes[6] ?? 1) > 1;
  const begin = wide ? 12 : 10;
  const end = begin + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder().decode(bytes.slice(begin, end));
  const type = /'descr':\s*'([^']+)'/.exec(header)?.[1] ?? "";
  const known = NPY[type];
  if (known === undefined) throw new Error(`numbers of the type ${type || "of this file"} are not read here`);
  if (/'fortran_order':\s*True/.test(header))
    throw new Error("the file is in Fortran's order; save numpy.ascontiguousarray");
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(header)?.[1] ?? "").match(/\d+/g)?.map(Number) ?? [];
  return tensor(known[0](bytes.slice(end).buffer), shape, known[1]);
}

const DESCRIPTIONS: readonly [new (...size: never[]) => TypedArray, string][] = [
  [Float32Array, "<f4"],
  [Float64Array, "<f8"],
  [Int8Array, "|i1"],
  [Int16Array, "<i2"],
  [Int32Array, "<i4"],
  [BigInt64Array, "<i8"],
  [Uint8Array, "|u1"],
];

/** Returns a tensor as an NPY file; half precision as float32. */
export function toNpy({ data, shape, dataType }: Tensor): Uint8Array {
  const plain = DESCRIPTIONS.find(([kind]) => data instanceof kind)?.[1] ?? "";
  const type = dataType === DataType.BOOL ? "|b1" : plain;
  const sizes = shape.length === 1 ? `${shape[0] ?? 0},` : shape.join(", ");
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': (${sizes}), }`;
  const header = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const file = new Uint8Array(10 + header.length + data.byteLength);
  file.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 0xff, header.length >> 8]);
  file.set(new TextEncoder().encode(header), 10);
  file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + header.length);
  return file;
}
