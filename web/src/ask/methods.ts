/** The methods that can be asked for: those of the contract, with the fields that a person may set. */

import { type DescField, type DescMessage, fromJson, type JsonObject, ScalarType, toJson } from "@bufbuild/protobuf";
import { type AttributionRequest, AttributionRequestSchema } from "@cutaway/contract/attribution_pb";

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
  /** Where it is in the method's JSON: `["path", "nSteps"]`. */
  readonly path: readonly string[];
  readonly label: string;
  readonly kind: "layer" | "number" | "boolean" | "indices";
}

const NESTED = ["path", "neuron", "index"];

/** Every method of the contract. */
export const METHODS: readonly Method[] = (
  AttributionRequestSchema.oneofs.find(({ name }) => name === "method")?.fields ?? []
).flatMap((field) => (field.message ? [methodOf(field, field.message)] : []));

function methodOf({ localName }: DescField, message: DescMessage): Method {
  const options = optionsOf(message, []);
  const neuron = message.fields.some(({ name }) => name === "neuron");
  const layer = message.fields.some(({ name }) => name === "layer");
  return { field: localName, name: message.name, of: neuron ? "a neuron" : layer ? "a layer" : "inputs", options };
}

function optionsOf({ fields }: DescMessage, above: readonly string[]): Option[] {
  return fields.flatMap((field): Option[] => {
    const path = [...above, field.localName];
    const label = field.name.replaceAll("_", " ");
    if (field.fieldKind === "message" && NESTED.includes(field.name)) return optionsOf(field.message, path);
    if (field.fieldKind === "list" && field.name === "positions") return [{ path, label: "index", kind: "indices" }];
    if (field.fieldKind !== "scalar") return [];
    if (field.scalar === ScalarType.STRING) return [{ path, label, kind: "layer" }];
    return [{ path, label, kind: field.scalar === ScalarType.BOOL ? "boolean" : "number" }];
  });
}

/** Returns the request for a method, at a layer where it takes one. */
export function requestFor(field: string, layer?: string): AttributionRequest {
  const method = METHODS.find((each) => each.field === field);
  const option = method?.options.find(({ kind }) => kind === "layer");
  const empty = fromJson(AttributionRequestSchema, { [field]: {} });
  return option && layer !== undefined ? withOption(empty, option, layer) : empty;
}

/** Returns the method that a request is for; undefined if it names none. */
export function methodIn({ method }: AttributionRequest): Method | undefined {
  return METHODS.find(({ field }) => field === method.case);
}

/** Returns what a request has for an option, as a person reads it; "" if it has the default. */
export function optionOf(request: AttributionRequest, { path }: Option): string {
  let value: unknown = toJson(AttributionRequestSchema, request);
  for (const key of [request.method.case ?? "", ...path]) value = (value as Record<string, unknown> | undefined)?.[key];
  if (Array.isArray(value)) return value.join(", ");
  return ["string", "number", "boolean"].includes(typeof value) ? String(value) : "";
}

/** Returns the request with another value for an option; "" is the default. */
export function withOption(request: AttributionRequest, { path, kind }: Option, text: string): AttributionRequest {
  const json: JsonObject = { ...(toJson(AttributionRequestSchema, request) as object) };
  let inside = json;
  for (const key of [request.method.case ?? "", ...path.slice(0, -1)]) {
    inside = (inside[key] ??= {}) as JsonObject;
  }
  const last = path.at(-1) ?? "";
  if (text === "") Reflect.deleteProperty(inside, last);
  else if (kind === "boolean") inside[last] = text === "true";
  else if (kind === "indices") inside[last] = (text.match(/-?\d+/g) ?? []).map(Number);
  else inside[last] = kind === "number" ? Number(text) : text;
  return fromJson(AttributionRequestSchema, json);
}
