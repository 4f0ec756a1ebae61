/** The tensors of a reply, by the names of docs/results.md. */

import type { DescField, Message } from "@bufbuild/protobuf";
import { reflect, type ReflectMessage } from "@bufbuild/protobuf/reflect";
import type { Attack, AttackedAttribution } from "./gen/cutaway/v1/attack_pb.js";
import type { Attribution, Metric, TokenAttribution } from "./gen/cutaway/v1/attribution_pb.js";
import { type Capture, type CapturedLeaf, HookPoint } from "./gen/cutaway/v1/capture_pb.js";
import { EstimateSchema, type InspectResponse, InspectResponseSchema } from "./gen/cutaway/v1/inspection_pb.js";
import { type NamedTensor, type Tensor as TensorMessage, TensorSchema } from "./gen/cutaway/v1/tensor_pb.js";
import { KINDS } from "./kinds.js";
import { fromMessage, type Tensor } from "./tensors.js";

/** The place of a captured tensor. */
export interface Place {
  /** The module, or the operator's address. */
  readonly module: string;
  readonly point: HookPoint;
  /** Which call of the module, from 0, of how many that were captured. */
  readonly call: number;
  readonly calls: number;
  /** Where it was in the structure that the module took or returned; "" for a tensor alone. */
  readonly path: string;
}

/** What is known of a tensor, or of those in a message. */
interface Where {
  /** The first part of its name. */
  readonly kind: string;
  /** The name that the arrays of an attribution share. */
  readonly attribution?: string;
  /** The attack that it is of. */
  readonly attack?: string;
  /** The output, input, layer or parameter that it is of. */
  readonly key?: string;
  readonly place?: Place;
}

/** A tensor of a reply. */
export interface Entry extends Where {
  readonly name: string;
  readonly message: TensorMessage;
}

/** Returns the tensors of a reply by their names. The second of a name has `#1` behind it, the third `#2`. */
export function arrays(reply: InspectResponse): Record<string, Tensor> {
  const found = Object.create(null) as Record<string, Tensor>;
  for (const { name, message } of entries(reply)) {
    let unique = name;
    for (let number = 1; unique in found; number++) unique = `${name}#${number}`;
    found[unique] = fromMessage(message);
  }
  return found;
}

/** Returns the tensors of a reply, in the order in which a reply in pieces numbers them. */
export function entries(reply: InspectResponse): Entry[] {
  return [...entriesIn(reflect(InspectResponseSchema, reply), { kind: "" })];
}

/** Returns the name of a captured tensor without its kind: `conv1@output`, `lstm@output:[0]`, `act@output#1`. */
export function nameOf({ module, point, call, path }: Place): string {
  return `${module}@${HookPoint[point].toLowerCase()}${path && `:${path}`}${call ? `#${call}` : ""}`;
}

function* entriesIn(message: ReflectMessage, where: Where): Generator<Entry> {
  if (message.desc.typeName === EstimateSchema.typeName) return; // its tensors have no data
  if (message.desc.typeName === TensorSchema.typeName) {
    const { kind, attribution, place } = where;
    const key = place ? nameOf(place) : where.key;
    const parts = [kind === "output" ? undefined : kind, attribution, key].filter((each) => each !== undefined);
    yield { ...where, name: parts.join(":"), message: message.message as Message as TensorMessage };
    return;
  }
  const seen = new Map<string, number>(); // attributions and attacks by their methods
  for (const field of [...message.desc.fields].sort((one, other) => one.number - other.number)) {
    const kind = KINDS[`${message.desc.name}.${field.name}`] ?? where.kind;
    for (const [number, inner] of messagesIn(message, field).entries()) {
      yield* entriesIn(inner, { ...inside(inner, where, number, seen), kind });
    }
  }
}

/** Returns what a message, one of several in a field, adds to what is known of its tensors. */
function inside({ desc, message }: ReflectMessage, where: Where, number: number, seen: Map<string, number>): Where {
  switch (desc.name) {
    case "Attribution":
      if (where.attack) return where;
      return { ...where, attribution: numbered(fieldOf((message as Attribution).method), seen) };
    case "Attack":
      return { ...where, attack: numbered(fieldOf((message as Attack).method), seen) };
    case "AttackedAttribution": {
      const method = (message as AttackedAttribution).attribution?.method ?? "";
      return { ...where, attribution: numbered(`${where.attack ?? ""}:${fieldOf(method)}`, seen) };
    }
    case "Metric":
      return { ...where, key: (message as Metric).name };
    case "TokenAttribution": {
      const { input } = message as TokenAttribution;
      return input ? { ...where, key: input } : where;
    }
    case "NamedTensor": {
      const { name } = message as NamedTensor;
      return { ...where, key: where.attack && !where.attribution ? `${where.attack}:${name}` : name };
    }
    case "Capture": {
      const { module, point, calls } = message as Capture;
      return { ...where, place: { module, point, call: 0, calls: calls.length, path: "" } };
    }
    case "CapturedCall":
      return { ...where, ...(where.place && { place: { ...where.place, call: number } }) };
    case "CapturedLeaf":
      return { ...where, ...(where.place && { place: { ...where.place, path: (message as CapturedLeaf).path } }) };
    default:
      return where;
  }
}

/** Returns the name; behind the second one `#1`, behind the third `#2`. */
function numbered(name: string, seen: Map<string, number>): string {
  const before = seen.get(name) ?? 0;
  seen.set(name, before + 1);
  return before ? `${name}#${before}` : name;
}

function messagesIn(message: ReflectMessage, field: DescField): ReflectMessage[] {
  if (!message.isSet(field)) return [];
  if (field.fieldKind === "message") return [message.get(field)];
  return field.fieldKind === "list" && field.listKind === "message"
    ? ([...message.get(field)] as ReflectMessage[])
    : [];
}

/** Returns the contract's field for a method: `layer_grad_cam` for `LayerGradCam`. */
function fieldOf(method: string): string {
  return method.replace(/(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/g, "_").toLowerCase();
}
