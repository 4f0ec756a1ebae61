/** Replies as people use them. */

import { clone } from "@bufbuild/protobuf";
import { entries, nameOf, type Place } from "./arrays.js";
import type { Attribution as AttributionMessage } from "./gen/cutaway/v1/attribution_pb.js";
import { HookPoint } from "./gen/cutaway/v1/capture_pb.js";
import { type Check, Verdict } from "./gen/cutaway/v1/check_pb.js";
import { type ClassPrediction, type InspectResponse, InspectResponseSchema } from "./gen/cutaway/v1/inspection_pb.js";
import { byName, fromMessage, moveFirst, type Tensor } from "./tensors.js";

/** One attribution, with the outcome of its checks. */
export interface Attribution {
  /** Captum's class name. */
  readonly method: string;
  /** The layer, or "". */
  readonly layer: string;
  /** By input name, of the input's shape; for a layer method, by the layer's name. */
  readonly values: Readonly<Record<string, Tensor>>;
  /** Comparisons with raw hooks. */
  readonly checks: readonly Check[];
  /** The worst outcome of the checks; undefined without a check. */
  readonly verdict: Verdict | undefined;
  /** All else: convergence deltas, targets, tokens, metrics, the error in its place. */
  readonly message: AttributionMessage;
}

/** A result. */
export interface Inspection {
  /** By output name; axis 0 is the batch. */
  readonly predictions: Readonly<Record<string, Tensor>>;
  /** The predicted class of each example; empty for a model without classes. */
  readonly classes: readonly ClassPrediction[];
  /** By name: `conv1@output`; a tensor inside a structure has its path, `lstm@output:[0]`, and one of a further call `#1`. */
  readonly captures: Readonly<Record<string, Tensor>>;
  /** The same, with the place of each. */
  readonly captured: readonly Captured[];
  /** By input name, of the input's shape. */
  readonly inputGradients: Readonly<Record<string, Tensor>>;
  /** By parameter name. */
  readonly parameterGradients: Readonly<Record<string, Tensor>>;
  /** In the order of the request. */
  readonly attributions: readonly Attribution[];
  /** The whole reply: warnings, provenance, timings, and what else there is. */
  readonly message: InspectResponse;
}

/** What outweighs what: a check that does not apply must not hide one that does. */
const WORST_FIRST = [Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE];

/** Returns the result in a reply. */
export function inspection(message: InspectResponse): Inspection {
  const captured = entries(message).flatMap(({ kind, place, message: tensor }): Captured[] =>
    place && kind === "capture" ? [{ name: nameOf(place), ...place, tensor: fromMessage(tensor) }] : [],
  );
  return {
    predictions: byName(message.predictions?.outputs ?? []),
    classes: message.predictions?.classes ?? [],
    captures: Object.fromEntries(captured.map(({ name, tensor }) => [name, tensor])),
    captured,
    inputGradients: byName(message.inputGradients),
    parameterGradients: byName(message.parameterGradients),
    attributions: message.attributions.map(attribution),
    message,
  };
}

/**
 * Returns a result with the examples of each tensor on axis 0, where it has an axis of them. `exampleAxes` of its message
 * still says where they were.
 */
export function examplesFirst(result: Inspection): Inspection {
  const axes = new Map(result.message.exampleAxes.map(({ tensor, axis = 0 }) => [tensor, axis]));
  if (![...axes.values()].some(Boolean)) return result;
  const message = clone(InspectResponseSchema, result.message);
  for (const { name, message: tensor } of entries(message)) moveFirst(tensor, axes.get(name) ?? 0);
  return inspection(message);
}

/** A captured tensor, and where it was. */
export interface Captured extends Place {
  /** Its name in `Inspection.captures`. */
  readonly name: string;
  readonly tensor: Tensor;
}

function attribution(message: AttributionMessage): Attribution {
  const verdicts = new Set(message.checks.map((check) => check.verdict));
  return {
    method: message.method,
    layer: message.layer,
    values: byName(message.values),
    checks: message.checks,
    verdict: WORST_FIRST.find((each) => verdicts.has(each)),
    message,
  };
}

export { HookPoint, Verdict };
