/** Questions: as programs write them, as messages of the contract, and as its JSON. */

import { create, fromJson, type JsonValue, type MessageInitShape } from "@bufbuild/protobuf";
import { CaptureRequestSchema } from "./gen/cutaway/v1/capture_pb.js";
import type { RawInput } from "./gen/cutaway/v1/input_pb.js";
import { type InspectRequest, InspectRequestSchema } from "./gen/cutaway/v1/inspection_pb.js";
import { fromMessage, type Tensor, toMessage } from "./tensors.js";

/** One example for the model to decode: a text, or the bytes of a file. */
export type Example = string | { readonly data: Uint8Array<ArrayBuffer>; readonly mediaType: string };

type Contract = Omit<
  MessageInitShape<typeof InspectRequestSchema>,
  "input" | "captures" | "inputGradients" | "$typeName"
>;

/** A question. All that is not named here is as in the contract: `attributions`, `target`, `edits`, `check`, ... */
export interface Question extends Contract {
  /** `digits`, or `digits/versions/1.0`. */
  model: string;
  /** Tensors by the name of the argument; or examples for the model to decode. */
  inputs: Readonly<Record<string, Tensor>> | readonly Example[];
  /** By tensor, the names of the elements of its last axis; refused if the model's features have others, or in another order. */
  featureNames?: Readonly<Record<string, readonly string[]>>;
  /** What to return from inside the model; a name or glob alone is a module's output. */
  captures?: readonly (string | MessageInitShape<typeof CaptureRequestSchema>)[];
  /** True for every floating input, or names. */
  inputGradients?: boolean | readonly string[];
}

/** Returns a question as a request of the contract. */
export function requestOf({ inputs, featureNames, captures = [], inputGradients, ...rest }: Question): InspectRequest {
  const names = Array.isArray(inputGradients) ? [...inputGradients] : [];
  return create(InspectRequestSchema, {
    ...rest,
    input: inputOf(inputs, featureNames),
    captures: captures.map((each) =>
      create(CaptureRequestSchema, typeof each === "string" ? { where: { case: "module", value: each } } : each),
    ),
    ...(inputGradients ? { inputGradients: { inputs: names } } : {}),
  });
}

function inputOf(
  inputs: Question["inputs"],
  featureNames: Question["featureNames"] = {},
): NonNullable<MessageInitShape<typeof InspectRequestSchema>["input"]> {
  if (Array.isArray(inputs)) {
    const examples = (inputs as readonly Example[]).map((each) =>
      typeof each === "string" ? { data: new TextEncoder().encode(each), mediaType: "text/plain" } : { ...each },
    );
    return { case: "raw", value: { examples } };
  }
  const named = Object.entries(inputs as Record<string, Tensor>).map(
    ([name, each]) => [name, toMessage(each)] as const,
  );
  const columns = Object.entries(featureNames).map(([name, each]) => [name, { names: [...each] }]);
  return {
    case: "tensors",
    value: { byName: Object.fromEntries(named), featureNames: Object.fromEntries(columns) },
  };
}

/**
 * Returns the question in the contract's JSON, such as a file has it; without inputs, if the JSON has none.
 *
 * @throws Error if it is none.
 */
export function questionOf(json: JsonValue): Question {
  // With its type name it would be taken for a whole message, whose parts need no conversion.
  const { $typeName, input, inputGradients, ...rest } = fromJson(InspectRequestSchema, json);
  const names = inputGradients?.inputs ?? [];
  const columns = input.case === "tensors" ? Object.entries(input.value.featureNames) : [];
  return {
    ...rest,
    inputs: inputsOf(input),
    ...(columns.length ? { featureNames: Object.fromEntries(columns.map(([name, each]) => [name, each.names])) } : {}),
    ...(inputGradients ? { inputGradients: names.length ? names : true } : {}),
  };
}

function inputsOf({ case: kind, value }: InspectRequest["input"]): Question["inputs"] {
  if (kind === "raw") {
    return value.examples.map(exampleOf);
  }
  const named = kind === "tensors" ? Object.entries(value.byName) : [];
  return Object.fromEntries(named.map(([name, each]): [string, Tensor] => [name, fromMessage(each)]));
}

/** Returns a text as a text, if its bytes are UTF-8; whatever it is returned as, the same bytes are sent. */
function exampleOf({ data, mediaType }: RawInput): Example {
  try {
    if (mediaType === "text/plain") return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    // They stay bytes.
  }
  return { data: Uint8Array.from(data), mediaType };
}
