/** The fields of an explanation that a person may set, and what a request has there. */

import { create, type DescField, fromJson, ScalarType, toJson } from "@bufbuild/protobuf";
import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { fromMessage, type Tensor, toMessage } from "@cutaway/client";
import { type AttributionRequest, AttributionRequestSchema } from "@cutaway/contract/attribution_pb";
import { TensorSchema } from "@cutaway/contract/tensor_pb";
import { FLOATING, type InputSpec } from "./ways.js";

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
