/** The question as a person makes it, and as the contract's JSON. */

import { type JsonObject, clone, create, fromJson, toJson } from "@bufbuild/protobuf";
import { fromMessage, type Question, requestOf, type Tensor } from "@cutaway/client";
import { type InspectRequest, InspectRequestSchema } from "@cutaway/contract/inspection_pb";

/** A question that may still lack its inputs. */
export type Draft = Omit<Question, "inputs"> & { inputs?: Question["inputs"] };

/** Returns the draft as a message of the contract: how its parts are read. */
export function messageOf({ inputs, ...rest }: Draft): InspectRequest {
  const message = requestOf({ ...rest, inputs: inputs ?? {} });
  if (inputs === undefined) message.input = { case: undefined };
  return message;
}

/** Returns a draft with the parts of a message. */
export function draftOf(message: InspectRequest): Draft {
  // With its type name it would be taken for a whole message, whose parts need no conversion.
  const { $typeName, input, inputGradients, ...rest } = clone(InspectRequestSchema, message);
  const inputs = inputsOf(input);
  const names = inputGradients?.inputs ?? [];
  return {
    ...rest,
    ...(inputs ? { inputs } : {}),
    ...(inputGradients ? { inputGradients: names.length ? names : true } : {}),
  };
}

function inputsOf(input: InspectRequest["input"]): Question["inputs"] | undefined {
  if (input.case === "raw") {
    return input.value.examples.map(({ data, mediaType }) =>
      mediaType === "text/plain" ? new TextDecoder().decode(data) : { data: Uint8Array.from(data), mediaType },
    );
  }
  if (input.case === "tensors") {
    const tensors = Object.entries(input.value.byName).map(([name, each]): [string, Tensor] => [
      name,
      fromMessage(each),
    ]);
    return Object.fromEntries(tensors);
  }
  return undefined;
}

/** Returns the draft in the contract's JSON; with its inputs only if a person wants them there. */
export function jsonOf(draft: Draft, withInputs: boolean): JsonObject {
  const message = messageOf(draft);
  if (!withInputs) message.input = { case: undefined };
  return toJson(InspectRequestSchema, message) as JsonObject;
}

/**
 * Reads the contract's JSON.
 *
 * @throws Error if it is none.
 */
export function fromText(text: string): Draft {
  return draftOf(fromJson(InspectRequestSchema, JSON.parse(text) as JsonObject));
}

/** Returns a draft for a model, with nothing asked yet. */
export function emptyDraft(model: string): Draft {
  return draftOf(create(InspectRequestSchema, { model }));
}
