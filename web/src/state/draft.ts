/** The question as a person makes it, and as the contract's JSON. */

import { type JsonObject, toJson } from "@bufbuild/protobuf";
import { type Example, type Question, questionOf, requestOf, type Tensor } from "@cutaway/client";
import { type InspectRequest, InspectRequestSchema } from "@cutaway/contract/inspection_pb";

/** A question that may still lack its inputs. */
export type Draft = Omit<Question, "inputs"> & { inputs?: Question["inputs"] | undefined };

/** Returns the draft as a message of the contract: how its parts are read. */
export function messageOf({ inputs, ...rest }: Draft): InspectRequest {
  const message = requestOf({ ...rest, inputs: inputs ?? {} });
  if (inputs === undefined) message.input = { case: undefined };
  return message;
}

/** Returns the parts of a question as a message of the contract, without its inputs, which may be large. */
export function askedParts(question: Draft): InspectRequest {
  return messageOf({ ...question, inputs: undefined });
}

/** Returns the draft in the contract's JSON; with its inputs only if a person wants them there. */
export function jsonOf({ inputs, ...rest }: Draft, withInputs: boolean): JsonObject {
  return toJson(InspectRequestSchema, messageOf(withInputs && inputs ? { ...rest, inputs } : rest)) as JsonObject;
}

/** Returns the same as a text; a zero keeps its sign, as text, which JSON.stringify takes from a number. */
export function textOf(draft: Draft, withInputs: boolean): string {
  return JSON.stringify(jsonOf(draft, withInputs), (_, value: unknown) => (Object.is(value, -0) ? "-0" : value));
}

/**
 * Reads the contract's JSON.
 *
 * @throws Error if it is none.
 */
export function fromText(text: string): Draft {
  const { inputs, ...rest } = questionOf(JSON.parse(text) as JsonObject);
  return Object.keys(inputs).length ? { ...rest, inputs } : rest;
}

/** Returns the tensors that a question gives, by name; none where it has examples for the model to decode. */
export function tensorsIn({ inputs }: Question): Readonly<Record<string, Tensor>> {
  return Array.isArray(inputs) ? {} : (inputs as Readonly<Record<string, Tensor>>);
}

/** An example that is a file. */
export type FileExample = Exclude<Example, string>;

/** Returns the examples that a question gives for the model to decode; none where it has tensors. */
export function examplesIn({ inputs }: Pick<Draft, "inputs">): readonly Example[] {
  return Array.isArray(inputs) ? (inputs as readonly Example[]) : [];
}

/** Returns those that are files. */
export function filesIn(question: Pick<Draft, "inputs">): FileExample[] {
  return examplesIn(question).filter((each): each is FileExample => typeof each !== "string");
}

/** Returns a draft for a model, with nothing asked yet. */
export function emptyDraft(model: string): Draft {
  return fromText(JSON.stringify({ model }));
}
