/** One change that a person tries: where, what part of it, and how. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Captured, HookPoint } from "@cutaway/client";
import { type Edit, EditSchema } from "@cutaway/contract/edit_pb";
import { axisNames } from "../measures/index.js";
import { whereIs } from "../models/places.js";
import { type Exchange, wholeOutputs } from "../state/index.js";

const MOST_PLACES = 2000;

/** What a person may do to what comes out of a place. */
export type Verb = "scale" | "zero" | "add" | "clamp";

/** What is changed: what a module or an operator returned, in one call or in all, one tensor of it or all. */
export type EditTarget = Readonly<{ address: string; call?: number | undefined; path?: string | undefined }>;

/** A change as it is chosen on the page. */
export interface EditDraft {
  readonly place: EditTarget;
  readonly verb: Verb;
  /** The factor, what is added, or the upper bound. */
  readonly amount: number;
  /** The index along each axis behind that of the batch; undefined for all of an axis. */
  readonly at: readonly (number | undefined)[];
}

/** How a verb is shown, and the range of its slider, which starts, but for zero, where it changes nothing. */
export type Slider = Readonly<{ name: string; label: string; least: number; most: number; start: number }>;

/** The verbs. */
export const VERBS: Readonly<Record<Verb, Slider>> = {
  scale: { name: "Multiply", label: "Factor", least: -2, most: 3, start: 1 },
  add: { name: "Add", label: "Added", least: -3, most: 3, start: 0 },
  clamp: { name: "Cut off above", label: "Upper bound", least: 0, most: 5, start: 5 },
  zero: { name: "Set to zero", label: "", least: 0, most: 0, start: 0 },
};

/** Returns the edit of the contract. */
export function editOf({ place: { address, call, path = "" }, verb, amount, at }: EditDraft): Edit {
  const kinds = {
    scale: { case: "scale", value: { factor: amount } },
    add: { case: "add", value: { addend: { case: "scalar", value: amount } } },
    clamp: { case: "clamp", value: { maximum: amount } },
    zero: { case: "zero", value: {} },
  } as const;
  return create(EditSchema, {
    where: whereIs(address),
    point: HookPoint.OUTPUT,
    kind: kinds[verb],
    path,
    call,
    slices: at.flatMap((index, axis) =>
      index === undefined ? [] : [{ axis: axis + 1, start: BigInt(index), stop: BigInt(index + 1) }],
    ),
  });
}

/** Returns a place in words. */
export function placeText({ address, call, path }: EditTarget): string {
  return [address || "the model", call === undefined ? "" : `call ${call}`, path ? `tensor ${path}` : ""]
    .filter(Boolean)
    .join(", ");
}

/** Returns an edit of the contract in words. */
export function editText({ where, kind, slices, call, path }: MessageInitShape<typeof EditSchema>): string {
  const parts = (slices ?? []).map(({ axis = 0, start = 0n, stop, indices = [] }) =>
    indices.length ? `axis ${axis}: ${indices.join(", ")}` : `axis ${axis}: ${start} to ${stop ?? "its end"}`,
  );
  const place = placeText({ address: where?.value ?? "", call, path });
  return [`${kind?.case ?? "edit"} ${place}`, ...parts].join(", ");
}

/** Returns where a captured output is changed. */
export function placeAt({ module, call, calls, path }: Captured): EditTarget {
  return { address: module, path, call: calls > 1 ? call : undefined };
}

type Parts = Pick<Exchange, "model" | "question" | "reply">;

/** Returns the places that a person can choose: what was captured first, then every module that ran. */
export function placesOf(asked: Parts): EditTarget[] {
  const { model } = asked;
  const inside = model.modules.filter(({ name }) => name !== "" || model.modules.length === 1);
  const modules = inside.filter(({ calls }) => calls > 0 || model.example.length === 0);
  const all: EditTarget[] = [...wholeOutputs(asked).map(placeAt), ...modules.map(({ name }) => ({ address: name }))];
  return [...new Map(all.slice(0, MOST_PLACES).map((place) => [placeText(place), place])).values()];
}

/** An axis behind that of the batch; its size is undefined where it may be another than that of the model's own example. */
export type Axis = Readonly<{ name: string; size: number | undefined }>;

/** Returns the axes of a place: of what was captured there, or as many as for the model's own example. */
export function axesOf(asked: Parts, { address, call = 0, path = "" }: EditTarget): Axis[] {
  const { model } = asked;
  const found = model.modules.find(({ name }) => name === address);
  const known = found ?? model.operators.find((each) => each.address === address);
  const captured = wholeOutputs(asked).find(
    (each) => each.module === address && each.call === call && each.path === path,
  );
  const [, ...sizes] = captured?.tensor.shape ?? known?.outputShapes[0]?.sizes ?? [];
  const names = axisNames(sizes.length, found?.type);
  return sizes.map((size, axis) => ({ size: captured && Number(size), name: names[axis] ?? "" }));
}

/** Returns the change of a place that a person begins with: it changes nothing yet. */
export function unchanged(place: EditTarget): EditDraft {
  return { place, verb: "scale", amount: VERBS.scale.start, at: [] };
}
