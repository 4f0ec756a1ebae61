/** Answers as files: a stored explanation, which `cutaway verify` reads, and the arrays alone. */

import { toBinary, toJson } from "@bufbuild/protobuf";
import { arrays } from "@cutaway/client";
import { InspectRequestSchema, InspectResponseSchema } from "@cutaway/contract/inspection_pb";
import { ProvenanceSchema } from "@cutaway/contract/model_pb";
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { type Zippable, zipSync } from "fflate";
import { toNpy } from "../ask/arrays.js";
import { type Exchange, messageOf } from "../state/index.js";

/** Returns the file of docs/stored.md. */
export function storedFile({ question, reply: { message } }: Exchange): Uint8Array {
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

/** Returns an NPZ file with every tensor of an answer, by the names of docs/results.md. */
export function npzFile({ reply: { message } }: Exchange): Uint8Array {
  const files = Object.entries(arrays(message)).map(([name, tensor]) => [`${name}.npy`, toNpy(tensor)] as const);
  return zipped(Object.fromEntries(files));
}

/** Returns a ZIP archive whose members are stored as they are, at the first moment that ZIP knows. */
function zipped(files: Zippable): Uint8Array {
  return zipSync(files, { level: 0, mtime: new Date(1980, 0, 1) });
}
