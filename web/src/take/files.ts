/** Answers as files: a stored explanation, which `cutaway verify` reads, and the arrays alone. */

import { toBinary, toJson } from "@bufbuild/protobuf";
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { zipSync, type Zippable } from "fflate";
import { InspectRequestSchema, InspectResponseSchema } from "@cutaway/contract/inspection_pb";
import { ProvenanceSchema } from "@cutaway/contract/model_pb";
import type { Capture } from "@cutaway/contract/capture_pb";
import { type Attribution, byName, fromMessage, HookPoint, type Tensor } from "@cutaway/client";
import { toNpy } from "../ask/arrays.js";
import { METHODS } from "../ask/methods.js";
import { inSnakeCase } from "../pictures/text.js";
import type { Asked } from "../state/asked.js";
import { messageOf } from "../state/draft.js";

/** Returns the file of docs/stored.md. */
export function storedFile({ question, reply: { message } }: Asked): Uint8Array {
  const members = {
    "request.binpb": toBinary(InspectRequestSchema, messageOf(question)),
    "reply.binpb": toBinary(InspectResponseSchema, message),
  };
  const sums = Object.entries(members).map(([name, data]) => [
    name,
    { bytes: data.length, sha256: bytesToHex(sha256(data)) },
  ]);
  const manifest = {
    format: "cutaway-explanation",
    version: 1,
    members: Object.fromEntries(sums) as object,
    provenance: message.provenance ? toJson(ProvenanceSchema, message.provenance) : {},
  };
  return zipped({ "manifest.json": new TextEncoder().encode(JSON.stringify(manifest, null, 2)), ...members });
}

/** Returns an NPZ file with every tensor of an answer, by the names of docs/clients.md. */
export function npzFile({ reply }: Asked): Uint8Array {
  const { uneditedPredictions, captures } = reply.message;
  const named: [string, Tensor][] = [
    ...Object.entries(reply.predictions),
    ...prefixed("unedited:", byName(uneditedPredictions?.outputs ?? [])),
    ...prefixed("capture:", reply.captures),
    ...captures.flatMap(positionsOf),
    ...prefixed("gradient:", reply.inputGradients),
    ...prefixed("parameter_gradient:", reply.parameterGradients),
    ...reply.attributions.flatMap(ofAttribution),
  ];
  const files: Record<string, Uint8Array> = {};
  for (const [name, tensor] of named) {
    let unique = name;
    for (let number = 1; `${unique}.npy` in files; number++) unique = `${name}#${number}`;
    files[`${unique}.npy`] = toNpy(tensor);
  }
  return zipped(files);
}

function prefixed(prefix: string, tensors: Readonly<Record<string, Tensor>>): [string, Tensor][] {
  return Object.entries(tensors).map(([name, tensor]) => [prefix + name, tensor]);
}

/** Where the elements of a capture were, if it was reduced to its largest. */
function positionsOf({ module, point, calls }: Capture): [string, Tensor][] {
  const place = `positions:${module}@${HookPoint[point].toLowerCase()}`;
  const leaves = calls.flatMap((call) => call.leaves);
  return leaves.flatMap(({ path, positions }): [string, Tensor][] =>
    positions ? [[`${place}${path && ":"}${path}`, fromMessage(positions)]] : [],
  );
}

function ofAttribution({ method, values, message }: Attribution): [string, Tensor][] {
  const known = METHODS.find(({ name }) => name === method);
  const field = known ? inSnakeCase(known.field) : method;
  const { ids, values: sums } = message.tokens ?? {};
  return [
    ...prefixed(`attribution:${field}:`, values),
    ...prefixed(`standard_error:${field}:`, byName(message.standardErrors)),
    ...prefixed(`tokens:${field}:`, ids && sums ? { ids: fromMessage(ids), values: fromMessage(sums) } : {}),
  ];
}

/** Returns a ZIP archive whose members are stored as they are, at the first moment that ZIP knows. */
function zipped(files: Zippable): Uint8Array {
  return zipSync(files, { level: 0, mtime: new Date(1980, 0, 1) });
}
