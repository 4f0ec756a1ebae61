/** The methods that can be asked for: those of the contract. */

import {
  create,
  type DescField,
  type DescMessage,
  fromJson,
  type JsonObject,
  type JsonValue,
  ScalarType,
  toJson,
} from "@bufbuild/protobuf";
import { fromMessage, type ModelDetail, type Tensor, toMessage } from "@cutaway/client";
import { type AttributionRequest, AttributionRequestSchema } from "@cutaway/contract/attribution_pb";
import type { Module } from "@cutaway/contract/model_pb";
import { TensorSchema } from "@cutaway/contract/tensor_pb";
import { zeros } from "./arrays.js";
import { FLOATING, type InputSpec, oneExample } from "./ways.js";

/** A field that a person may set. */
export interface Option {
  /** Where it is in the request's JSON: `["layerGradCam", "layer"]`; `*` stands for the name of an input. */
  readonly path: readonly string[];
  readonly label: string;
  readonly kind: "layer" | "text" | "number" | "boolean" | "indices" | "choice" | "tensor" | "json";
  /** What a choice is between. */
  readonly choices?: readonly string[];
  /** Whether the contract has no default for it. */
  readonly required?: boolean;
  /** Whether a number is a whole one, from 0 on. */
  readonly whole?: boolean;
}

/** How a field is set. */
interface Way extends Partial<Option> {
  readonly kind: Option["kind"];
  /** The path below the field. */
  readonly below?: readonly string[];
}

/** Ways by the name of the field, where that says more than its type; by that of its message; and by its scalar. */
const BY_NAME: Readonly<Record<string, Way>> = {
  layer_path: { kind: "text" },
  windows: { kind: "indices", below: ["*", "sizes"], required: true },
  positions: { kind: "indices", label: "index", required: true },
};
const BY_MESSAGE: Readonly<Record<string, Way>> = {
  Baselines: { kind: "number", label: "baseline", below: ["byInput", "*", "scalar"] },
  Baseline: { kind: "number", below: ["scalar"] },
  FeatureMasks: { kind: "tensor", label: "mask", below: ["byInput", "*"] },
  AxisSizes: { kind: "indices", below: ["*", "sizes"] },
  Quality: { kind: "boolean", label: "quality, with random weights", below: ["randomisation"] },
};
const BY_SCALAR: Readonly<Partial<Record<ScalarType, Way>>> = {
  [ScalarType.STRING]: { kind: "layer", required: true },
  [ScalarType.BOOL]: { kind: "boolean" },
};

/** Baselines of the methods that draw from several: for others, one number. */
const SAMPLES: Way = { kind: "tensor", label: "baselines", below: ["byInput", "*", "distribution"], required: true };
const DRAWING = /(deepLift|gradient)Shap$/i;

/** Messages whose fields are set one by one. */
const OPENED = ["PathIntegral", "Neuron", "Index", "NoiseTunnel"];

/** Returns the options in some fields of the contract; `above` is the path to them. */
export function optionsIn(fields: readonly DescField[], above: readonly string[]): Option[] {
  return fields.flatMap((field): Option[] => {
    const path = [...above, field.localName];
    if (field.fieldKind === "message" && OPENED.includes(field.message.name)) {
      const inside = optionsIn(field.message.fields, path);
      return above.length ? inside : inside.map((each) => ({ ...each, label: `noise: ${each.label}` }));
    }
    const { below = [], ...way } = DRAWING.test(above[0] ?? "") && field.name === "baselines" ? SAMPLES : wayOf(field);
    return [{ label: field.name.replaceAll("_", " "), ...way, path: [...path, ...below] }];
  });
}

function wayOf(field: DescField): Way {
  const named = BY_NAME[field.name] ?? BY_MESSAGE[field.message?.name ?? ""];
  if (named) return named;
  if (field.fieldKind === "enum")
    return { kind: "choice", choices: field.enum.values.slice(1).map(({ name }) => name) };
  if (field.fieldKind !== "scalar") return { kind: "json" };
  return BY_SCALAR[field.scalar] ?? { kind: "number", whole: field.scalar === ScalarType.UINT32 };
}

/** Returns the options of a method for a model: those of an input once for each. */
export function optionsFor(
  { options }: { readonly options: readonly Option[] },
  inputs: readonly InputSpec[],
): (Option & { input?: InputSpec })[] {
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

/** Returns the field of a baseline that is one number: of token ids, the id. */
function scalarOf({ dataType }: InputSpec): string {
  return FLOATING.includes(dataType) ? "scalar" : "tokenId";
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
  if (kind === "indices") return JSON.parse(`[${text.trim().replace(/[\s,;]+/g, ",")}]`) as JsonValue;
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
