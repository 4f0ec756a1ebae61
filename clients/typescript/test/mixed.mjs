// Asks every question of a list, each a serialised InspectRequest in base64, and returns what came of it: the reply and
// the typed arrays in it, or the error.
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { arrays, Client } from "../dist/index.js";
import { InspectRequestSchema, InspectResponseSchema } from "../dist/gen/cutaway/v1/inspection_pb.js";
import { byName } from "../dist/tensors.js";

export async function outcomes(url, requests) {
  const client = new Client(url);
  const found = [];
  for (const each of requests) found.push(await outcome(client, fromBinary(InspectRequestSchema, bytesOf(each))));
  return found;
}

/** @param {any} request */
async function outcome(client, request) {
  const { $typeName: _, input, captures, inputGradients, ...rest } = request;
  /** @type {any[]} */
  const named = Object.entries(input.value.byName ?? {}).map(([name, tensor]) => ({ name, tensor }));
  const inputs = input.case === "raw" ? input.value.examples : byName(named);
  const gradients = inputGradients && (inputGradients.inputs.length ? inputGradients.inputs : true);
  try {
    const question = { ...rest, inputs, captures, ...(gradients ? { inputGradients: gradients } : {}) };
    return answered(await client.inspect(question));
  } catch (failure) {
    if (failure.reason === undefined) throw failure;
    return { reason: failure.reason, field: failure.field };
  }
}

function answered({ message }) {
  const found = Object.entries(arrays(message)).map(([name, { data, shape }]) => [name, [[...shape], textOf(data)]]);
  return { reply: textOf(toBinary(InspectResponseSchema, message)), arrays: Object.fromEntries(found) };
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function textOf({ buffer, byteOffset, byteLength }) {
  const bytes = new Uint8Array(buffer, byteOffset, byteLength);
  let text = "";
  for (let start = 0; start < bytes.length; start += 1 << 14) {
    text += String.fromCharCode(...bytes.subarray(start, start + (1 << 14)));
  }
  return btoa(text);
}
