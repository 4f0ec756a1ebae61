/** Tensors from what people have: lists of numbers, NPY files. */

import { DataType, tensor, type Tensor } from "@cutaway/client";
import { sizeOf } from "../measures/numbers.js";
import { exact } from "../pictures/text.js";
import { type InputSpec, oneExample } from "./ways.js";

type Nested = number | boolean | readonly Nested[];

/** What NPY calls each type, and its arrays; those of `BOOL` are bytes, those of half precision are not read. */
const TYPES = [
  [DataType.FLOAT32, "<f4", Float32Array],
  [DataType.FLOAT64, "<f8", Float64Array],
  [DataType.FLOAT16, "", Float32Array],
  [DataType.BFLOAT16, "", Float32Array],
  [DataType.INT8, "|i1", Int8Array],
  [DataType.INT16, "<i2", Int16Array],
  [DataType.INT32, "<i4", Int32Array],
  [DataType.INT64, "<i8", BigInt64Array],
  [DataType.UINT8, "|u1", Uint8Array],
  [DataType.BOOL, "|b1", Uint8Array],
] as const;

/**
 * Returns a tensor of numbers in the type that an input has; `FLOAT32` where it says none.
 *
 * @throws Error if a number is none of that type.
 */
export function numbers(values: readonly number[], shape: readonly number[], type: DataType): Tensor {
  const [own, , Kind] = TYPES.find(([each]) => each === type) ?? TYPES[0];
  if (Kind === Float32Array || Kind === Float64Array) return tensor(Kind.from(values), shape, own);
  const whole = own === DataType.BOOL ? values.map((each) => Number(each !== 0)) : values;
  const wrong = whole.find((each) => !Number.isSafeInteger(each));
  if (wrong !== undefined) throw new Error(`${wrong} is no whole number, or a larger one than lists can hold`);
  const data = Kind === BigInt64Array ? Kind.from(whole, BigInt) : (Kind as Int32ArrayConstructor).from(whole);
  const index = whole.findIndex((each, at) => Number(data[at]) !== each);
  if (index >= 0)
    throw new Error(`${values[index] ?? ""} is too large, or too small, for ${DataType[own].toLowerCase()}`);
  return tensor(data, shape, own);
}

/** Returns a tensor as nested lists, as `fromLists` reads them. */
export function toLists(value: Tensor): string {
  const nested = (flat: readonly string[], [, ...inner]: readonly number[]): string => {
    const size = sizeOf(inner);
    const parts = inner.length
      ? Array.from({ length: flat.length / size }, (_, at) => nested(flat.slice(at * size, (at + 1) * size), inner))
      : flat;
    return `[${parts.join(", ")}]`;
  };
  return nested(elements(value).map(exact), value.shape);
}

/** Returns examples of zeros. */
export function zeros(spec: InputSpec, rows = 1): Tensor {
  const shape = oneExample(spec).with(0, rows);
  return numbers(new Array<number>(sizeOf(shape)).fill(0), shape, spec.dataType);
}

/** Returns the elements of a tensor as plain numbers. */
export function elements({ data }: Tensor): number[] {
  return Array.from(data as ArrayLike<number | bigint>, Number);
}

/**
 * Reads nested lists: `[[0, 1], [2, 3]]`, whose outermost axis is the batch; or lines of numbers, each an example.
 *
 * @throws Error that says what is wrong.
 */
export function fromLists(text: string, type: DataType): Tensor {
  const lines = text.trim().split("\n");
  const nested = text.trim().startsWith("[")
    ? (JSON.parse(text) as Nested)
    : lines.map(
        (line) =>
          JSON.parse(
            `[${line
              .trim()
              .split(/[\s,;]+/)
              .join()}]`,
          ) as Nested,
      );
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
  const [own, , Kind] = TYPES.find(([, each]) => each === type) ?? [];
  if (Kind === undefined) throw new Error(`numbers of the type ${type || "of this file"} are not read here`);
  if (/'fortran_order':\s*True/.test(header))
    throw new Error("the file is in Fortran's order; save numpy.ascontiguousarray");
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(header)?.[1] ?? "").match(/\d+/g)?.map(Number) ?? [];
  return tensor(new Kind(bytes.slice(end).buffer), shape, own);
}

/** Returns a tensor as an NPY file; half precision as float32. */
export function toNpy({ data, shape, dataType }: Tensor): Uint8Array {
  const [, type] = TYPES.find(([each]) => each === dataType) ?? TYPES[0];
  const sizes = shape.length === 1 ? `${shape[0] ?? 0},` : shape.join(", ");
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': (${sizes}), }`;
  const header = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const file = new Uint8Array(10 + header.length + data.byteLength);
  file.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 0xff, header.length >> 8]);
  file.set(new TextEncoder().encode(header), 10);
  file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 10 + header.length);
  return file;
}
