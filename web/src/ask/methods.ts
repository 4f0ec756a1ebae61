/** The methods that can be asked for: those of the contract, with the fields that a person may set. */

import { create, type DescField, type DescMessage, fromJson, ScalarType, toJson } from "@bufbuild/protobuf";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { fromMessage, type ModelDetail, type Tensor, toMessage } from "@cutaway/client";
import { type AttributionRequest, AttributionRequestSchema } from "@cutaway/contract/attribution_pb";
import type { Module } from "@cutaway/contract/model_pb";
import { TensorSchema } from "@cutaway/contract/tensor_pb";
import { zeros } from "./arrays.js";
import { FLOATING, type InputSpec, oneExample } from "./ways.js";

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

/** A field of a method that a person may set. */
export interface Option {
  /** Where it is in the request's JSON: `["layerGradCam", "layer"]`; `*` stands for the name of an input. */
  readonly path: readonly string[];
  readonly label: string;
  readonly kind: "layer" | "number" | "boolean" | "indices" | "choice" | "tensor" | "json";
  /** What a choice is between. */
  readonly choices?: readonly string[];
  /** Whether Captum has no default for it. */
  readonly required?: boolean;
}

const NESTED = ["path", "neuron", "index", "noise_tunnel"];
const OF_SAMPLES = /^(deep_lift|gradient)_shap$/;

/** Every method of the contract. */
export const METHODS: readonly Method[] = (
  AttributionRequestSchema.oneofs.find(({ name }) => name === "method")?.fields ?? []
).flatMap((field) => (field.message ? [methodOf(field, field.message)] : []));

function methodOf({ localName, name }: DescField, message: DescMessage): Method {
  const tunnel = AttributionRequestSchema.fields.filter((field) => field.name === "noise_tunnel");
  const ofSamples = OF_SAMPLES.test(name.replace(/^(layer|neuron)_/, ""));
  const options = [...optionsOf(message.fields, [localName], ofSamples), ...optionsOf(tunnel, [], false)];
  const neuron = message.fields.some((each) => each.name === "neuron");
  const layer = message.fields.some((each) => each.name === "layer");
  return {
    field: localName,
    name: message.name.replace(/Lrp$/, "LRP"),
    of: neuron ? "a neuron" : layer ? "a layer" : "inputs",
    options,
  };
}

function optionsOf(fields: readonly DescField[], above: readonly string[], ofSamples: boolean): Option[] {
  return fields.flatMap((field): Option[] => {
    const path = [...above, field.localName];
    const label = field.name.replaceAll("_", " ");
    const type = field.message?.name ?? "";
    if (NESTED.includes(field.name) && field.message) {
      const inside = optionsOf(field.message.fields, path, ofSamples);
      return field.name === "noise_tunnel"
        ? inside.map((each) => ({ ...each, label: `noise: ${each.label}` }))
        : inside;
    }
    if (type === "Baselines")
      return ofSamples
        ? [{ path: [...path, "byInput", "*", "distribution"], label: "baselines", kind: "tensor", required: true }]
        : [{ path: [...path, "byInput", "*", "scalar"], label: "baseline", kind: "number" }];
    if (type === "Baseline") return [{ path: [...path, "scalar"], label, kind: "number" }];
    if (type === "FeatureMasks") return [{ path: [...path, "byInput", "*"], label: "mask", kind: "tensor" }];
    if (type === "AxisSizes")
      return [{ path: [...path, "*", "sizes"], label, kind: "indices", required: field.name === "windows" }];
    if (field.name === "positions") return [{ path, label: "index", kind: "indices", required: true }];
    if (field.fieldKind === "enum")
      return [{ path, label, kind: "choice", choices: field.enum.values.slice(1).map(({ name }) => name) }];
    if (field.fieldKind !== "scalar") return [{ path, label, kind: "json" }];
    if (field.scalar === ScalarType.STRING) return [{ path, label, kind: "layer", required: true }];
    return [{ path, label, kind: field.scalar === ScalarType.BOOL ? "boolean" : "number" }];
  });
}

/** Returns the options of a method for a model: those of an input once for each. */
export function optionsFor({ options }: Method, inputs: readonly InputSpec[]): (Option & { input?: InputSpec })[] {
  return options.flatMap((option) =>
    option.path.includes("*")
      ? inputs.map((input) => ({
          ...option,
          input,
          path: option.path.map((each) => (each === "*" ? input.name : each === "scalar" ? scalarOf(input) : each)),
          label: inputs.length > 1 ? `${option.label} of ${input.name}` : option.label,
        }))
      : [option],
  );
}

/** What a request depends on. */
type Explained = Pick<ModelDetail, "inputs"> & Partial<Pick<ModelDetail, "modules">>;

/** Returns the field of a baseline that is one number: of token ids, the id. */
function scalarOf({ dataType }: InputSpec): string {
  return FLOATING.includes(dataType) ? "scalar" : "tokenId";
}

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

/** Returns a tensor as an option has it. */
export function tensorJson(tensor: Tensor): string {
  return JSON.stringify(toJson(TensorSchema, create(TensorSchema, toMessage(tensor))));
}

/** Returns the tensor that a request has for an option; undefined if it has none. */
export function tensorAt(request: AttributionRequest, option: Option): Tensor | undefined {
  const text = optionOf(request, option);
  return text === "" ? undefined : fromMessage(fromJson(TensorSchema, JSON.parse(text) as JsonValue));
}

/** Returns what a request has for an option, as a person reads it; "" if it has the default. */
export function optionOf(request: AttributionRequest, { path, kind }: Option): string {
  let value: JsonValue | undefined = toJson(AttributionRequestSchema, request);
  for (const key of path) value = (value as JsonObject | undefined)?.[key];
  if (value === undefined) return "";
  if (kind === "indices") return (value as readonly string[]).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/**
 * Returns the request with another value for an option; "" is the default.
 *
 * @throws Error if the text is no such value.
 */
export function withOption(request: AttributionRequest, { path, kind }: Option, text: string): AttributionRequest {
  const json = toJson(AttributionRequestSchema, request) as JsonObject;
  return fromJson(AttributionRequestSchema, changed(json, path, text === "" ? undefined : valueOf(text, kind)));
}

function valueOf(text: string, kind: Option["kind"]): JsonValue {
  if (kind === "indices") return (text.match(/-?\d+/g) ?? []).map(Number);
  if (kind === "json" || kind === "tensor") return JSON.parse(text) as JsonValue;
  return kind === "boolean" ? text === "true" : kind === "number" ? Number(text) : text;
}

/** Returns JSON with another value at a path, and without what is then empty below the method itself. */
function changed(json: JsonObject, [key = "", ...rest]: readonly string[], value?: JsonValue, depth = 0): JsonObject {
  const { [key]: old, ...others } = json;
  const inside = rest.length ? changed((old ?? {}) as JsonObject, rest, value, depth + 1) : value;
  const isEmpty = inside === undefined || (rest.length > 0 && depth > 0 && Object.keys(inside as object).length === 0);
  return isEmpty ? others : { ...others, [key]: inside };
}
