/** One change that a person tries: where, what part of it, and how. */

import { create } from "@bufbuild/protobuf";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import { type Edit, EditSchema } from "@cutaway/contract/edit_pb";

/** What a person may do to what comes out of a place. */
export type Verb = "scale" | "zero" | "add" | "clamp";

/** A change as it is chosen on the page. */
export interface Wanted {
  /** The module, or the operator's address. */
  readonly place: string;
  readonly verb: Verb;
  /** The factor, what is added, or the upper bound. */
  readonly amount: number;
  /** The axis whose element `index` alone is changed; 0 for all of it. */
  readonly axis: number;
  readonly index: number;
}

/** How a verb is shown. */
export interface Slider {
  readonly name: string;
  readonly label: string;
  readonly least: number;
  readonly most: number;
  /** Where it begins: but for zero, where it changes nothing. */
  readonly start: number;
}

/** The verbs, with the range of their sliders. */
export const VERBS: Readonly<Record<Verb, Slider>> = {
  scale: { name: "Multiply", label: "Factor", least: -2, most: 3, start: 1 },
  add: { name: "Add", label: "Added", least: -3, most: 3, start: 0 },
  clamp: { name: "Cut off above", label: "Upper bound", least: 0, most: 5, start: 5 },
  zero: { name: "Set to zero", label: "", least: 0, most: 0, start: 0 },
};

/** Returns the edit of the contract. */
export function editOf({ place, verb, amount, axis, index }: Wanted): Edit {
  const kinds = {
    scale: { case: "scale", value: { factor: amount } },
    add: { case: "add", value: { addend: { case: "scalar", value: amount } } },
    clamp: { case: "clamp", value: { maximum: amount } },
    zero: { case: "zero", value: {} },
  } as const;
  return create(EditSchema, {
    where: place.includes(":") ? { case: "op", value: place } : { case: "module", value: place },
    point: HookPoint.OUTPUT,
    kind: kinds[verb],
    slices: axis === 0 ? [] : [{ axis, start: BigInt(index), stop: BigInt(index + 1) }],
  });
}

/** An axis that a part can be chosen along. */
export interface Axis {
  readonly axis: number;
  readonly name: string;
  readonly size: number;
}

/** Returns the axes of what a place returned for the model's own example, but for that of the batch. */
export function axesOf({ modules, operators }: ModelDetail, place: string): Axis[] {
  const found = modules.find(({ name }) => name === place) ?? operators.find(({ address }) => address === place);
  const sizes = (found?.outputShapes[0]?.sizes ?? []).map(Number);
  const names =
    sizes.length === 4 ? ["channel", "row", "column"] : sizes.length === 3 ? ["position", "feature"] : ["unit"];
  return sizes.slice(1).map((size, at) => ({ axis: at + 1, name: names[at] ?? `axis ${at + 1}`, size }));
}

/** Returns the change that a person begins with: at the first captured output, where it changes nothing yet. */
export function startOf({ modules }: ModelDetail, captured: readonly string[]): Wanted {
  const place = captured.find((key) => key.endsWith("@output"))?.replace("@output", "") ?? modules[1]?.name ?? "";
  return { place, verb: "scale", amount: VERBS.scale.start, axis: 0, index: 0 };
}
