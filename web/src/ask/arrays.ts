/** Tensors from what people have: lists of numbers, NPY files. */

import { DataType, tensor, type Tensor } from "@cutaway/client";
import { dump, parse } from "npyjs";
import { sizeOf } from "../measures/index.js";
import { exact, fits } from "../ui/index.js";
import { FLOATING, type InputSpec, oneExample } from "./ways.js";

type Nested = number | boolean | readonly Nested[];

/**
 * What NPY calls each type, its arrays, and its largest number, or the largest that lists can hold; arrays of `BOOL` are
 * bytes, those of half precision are `float32`.
 */
const TYPES = [
  [DataType.FLOAT32, "f4", Float32Array, 3.4028234663852886e38],
  [DataType.FLOAT64, "f8", Float64Array, Number.MAX_VALUE],
  [DataType.FLOAT16, "f2", Float32Array, 65504],
  [DataType.BFLOAT16, "", Float32Array, 3.3895313892515355e38],
  [DataType.INT8, "i1", Int8Array, 127],
  [DataType.INT16, "i2", Int16Array, 32767],
  [DataType.INT32, "i4", Int32Array, 2147483647],
  [DataType.INT64, "i8", BigInt64Array, Number.MAX_SAFE_INTEGER],
  [DataType.UINT8, "u1", Uint8Array, 255],
  [DataType.BOOL, "b1", Uint8Array, 1],
] as const;

function typeOf(type: DataType): (typeof TYPES)[number] {
  return TYPES.find(([each]) => each === type) ?? TYPES[0];
}

/** Returns which numbers a type has. */
export function rangeOf(type: DataType): { least: number; most: number; whole: boolean } {
  const [own, , Kind, most] = typeOf(type);
  const whole = !isFloating(own);
  return { least: Kind === Uint8Array ? 0 : -most - (whole ? 1 : 0), most, whole };
}

/**
 * Returns a tensor of numbers in the type that an input has; `FLOAT32` where it says none.
 *
 * @throws Error if a number is none of that type.
 */
export function numbers(values: readonly number[], shape: readonly number[], type: DataType): Tensor {
  const [own, , Kind] = typeOf(type);
  const { least, most, whole } = rangeOf(own);
  const wrong = values.find((each) => (whole || Number.isFinite(each)) && !fits(each, { least, most, whole }));
  if (wrong !== undefined) throw new Error(`${wrong} is no ${DataType[own].toLowerCase()}, from ${least} to ${most}`);
  const data = Kind === BigInt64Array ? Kind.from(values, BigInt) : (Kind as Int32ArrayConstructor).from(values);
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
  const rows = lines.map((line) => `[${line.trim().replace(/[\s,;]+/g, ",")}]`);
  const nested = parsed(() => JSON.parse(text.trim().startsWith("[") ? text : `[${rows.join()}]`) as Nested, LISTS);
  const shape = shapeOf(nested);
  const flat = ([nested] as unknown[]).flat(Infinity).map(Number);
  if (!flat.every(Number.isFinite)) throw new Error("a number is too large");
  return numbers(flat, shape, type);
}

function shapeOf(nested: Nested): number[] {
  if (typeof nested === "number" || typeof nested === "boolean") return [];
  if (!Array.isArray(nested)) throw new Error("lists hold numbers only");
  const [first = [], ...others] = nested.map(shapeOf);
  if (others.some((each) => each.join() !== first.join())) throw new Error("the lists of one axis differ in length");
  return [nested.length, ...first];
}

/**
 * Reads an NPY file; floating numbers in the floating type that an input has.
 *
 * @throws Error that says what is wrong.
 */
export function fromNpy(file: ArrayBuffer, type: DataType): Tensor {
  const { data, shape, dtype, fortranOrder } = parsed(() => parse(file), "this is no NPY file that can be read here");
  const [own] = TYPES.find(([, each]) => each === dtype) ?? [];
  if (own === undefined) throw new Error(`numbers of the type ${dtype} are not read here`);
  if (fortranOrder) throw new Error("the file is in Fortran's order; save numpy.ascontiguousarray");
  const read = tensor(Array.isArray(data) ? Uint8Array.from(data) : (data as Tensor["data"]), shape, own);
  return isFloating(own) && isFloating(type) ? numbers(elements(read), shape, type) : read;
}

function isFloating(type: DataType): boolean {
  return type !== DataType.UNSPECIFIED && FLOATING.includes(type);
}

const LISTS = "this is no list of numbers such as [[0, 1], [2, 3]], nor lines of numbers";

function parsed<T>(read: () => T, problem: string): T {
  try {
    return read();
  } catch (failure) {
    throw new Error(problem, { cause: failure });
  }
}

/** Returns a tensor as an NPY file; half precision as float32. */
export function toNpy({ data, shape, dataType }: Tensor): Uint8Array<ArrayBuffer> {
  return new Uint8Array(dump(data, [...shape], dataType === DataType.BOOL ? { dtype: "b1" } : {}));
}
