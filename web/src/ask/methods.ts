/** The methods that can be asked for: those of the contract. */

import { type DescField, type DescMessage, fromJson } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { type AttributionRequest, AttributionRequestSchema } from "@cutaway/contract/attribution_pb";
import type { Module } from "@cutaway/contract/model_pb";
import { zeros } from "./arrays.js";
import { type Option, optionsFor, optionsIn, tensorJson, withOption } from "./options.js";
import { oneExample } from "./ways.js";

/** A method. */
export interface Method {
  /** Its field in the contract's JSON: `layerGradCam`. */
  readonly field: string;
  /** Its name: `LayerGradCam`. */
  readonly name: string;
  /** What it explains. */
  readonly of: "inputs" | "a layer" | "a neuron";
  readonly options: readonly Option[];
}

/** What every explanation may have beside its method. */
const COMMON = AttributionRequestSchema.fields.filter(({ oneof }) => oneof === undefined);

/** Every method of the contract. */
export const METHODS: readonly Method[] = (
  AttributionRequestSchema.oneofs.find(({ name }) => name === "method")?.fields ?? []
).flatMap((field) => (field.message ? [methodOf(field, field.message)] : []));

function methodOf({ localName }: DescField, { name, fields }: DescMessage): Method {
  const has = (field: string): boolean => fields.some((each) => each.name === field);
  return {
    field: localName,
    name: name.replace(/Lrp$/, "LRP"),
    of: has("neuron") ? "a neuron" : has("layer") ? "a layer" : "inputs",
    options: [
      ...optionsIn(fields, [localName]),
      ...optionsIn(
        // Captum's own class for language models is asked for in code, to see what it does.
        COMMON.filter(({ name }) => name !== "llm_attribution" && (name !== "layer_path" || has("layer"))),
        [],
      ),
    ],
  };
}

/** What a request depends on. */
type Explained = Pick<ModelDetail, "inputs"> & Partial<Pick<ModelDetail, "modules">>;

/** Returns the request for a method, with something in each field that has no default: it can be asked as it is. */
export function requestFor(field: string, { inputs, modules = [] }: Explained, layer?: string): AttributionRequest {
  const method = METHODS.find((each) => each.field === field);
  let request = fromJson(AttributionRequestSchema, { [field]: {} });
  for (const option of method ? optionsFor(method, inputs) : []) {
    if (!option.required) continue;
    if (option.kind === "layer" && layer !== undefined) request = withOption(request, option, layer);
    if (option.label === "index") request = withOption(request, option, firstOf(modules, layer));
    if (!option.input) continue;
    const [, ...sizes] = oneExample(option.input);
    const quarters = sizes.map((size, axis) => (axis < sizes.length - 2 ? 1 : Math.ceil(size / 4)));
    const value = option.kind === "tensor" ? tensorJson(zeros(option.input, 2)) : quarters.join(", ");
    request = withOption(request, option, value);
  }
  return request;
}

/** Returns the index of the first neuron of a layer, as far as its shape is known. */
function firstOf(modules: readonly Module[], layer?: string): string {
  const [, ...sizes] = modules.find(({ name }) => name === layer)?.outputShapes[0]?.sizes ?? [];
  return sizes.map(() => 0).join(", ");
}

/** Returns the method that a request is for; undefined if it names none. */
export function methodIn({ method }: AttributionRequest): Method | undefined {
  return METHODS.find(({ field }) => field === method.case);
}
