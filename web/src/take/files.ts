/** Answers as files: a stored explanation, which `cutaway verify` reads, and the arrays alone. */

import { toBinary, toJson } from "@bufbuild/protobuf";
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { zipSync, type Zippable } from "fflate";
import { InspectRequestSchema, InspectResponseSchema } from "@cutaway/contract/inspection_pb";
import { ProvenanceSchema } from "@cutaway/contract/model_pb";
import type { Attribution, Tensor } from "@cutaway/client";
import { toNpy } from "../ask/arrays.js";
import type { Asked } from "../state/asked.js";
import { messageOf } from "../state/draft.js";
import { snake } from "./plain.js";

/** Returns the file of docs/stored.md. */
export function storedFile({ question, reply: { message } }: Asked): Uint8Array {
  const request = messageOf(question);
  const members = {
    "request.binpb": toBinary(InspectRequestSchema, request),
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

/** Returns an NPZ file with every tensor of an answer, by the names that Python's client gives them. */
export function npzFile({ reply }: Asked): Uint8Array {
  const named: [string, Tensor][] = [
    ...Object.entries(reply.predictions),
    ...prefixed("capture:", reply.captures),
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

function ofAttribution({ method, values }: Attribution): [string, Tensor][] {
  return prefixed(`attribution:${snake(method).replace(/^_/, "")}:`, values);
}

/** Returns a ZIP archive whose members are stored as they are, at the first moment that ZIP knows. */
function zipped(files: Zippable): Uint8Array {
  return zipSync(files, { level: 0, mtime: new Date(1980, 0, 1) });
}

/** Has the browser save a file. */
export function save(name: string, bytes: Uint8Array | string): void {
  const url = URL.createObjectURL(new Blob([bytes as Uint8Array<ArrayBuffer> | string]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => {
    URL.revokeObjectURL(url);
  }, 60_000);
}
