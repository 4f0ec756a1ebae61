/** The question that a person starts from: prediction, a few places inside, and explanations that fit the model. */

import { create } from "@bufbuild/protobuf";
import { byName, type ModelDetail, type Question } from "@cutaway/client";
import { TargetSchema } from "@cutaway/contract/target_pb";
import { spread } from "../models/places.js";
import { type Draft, emptyDraft } from "../state/index.js";
import { elements } from "./arrays.js";
import { requestFor } from "./methods.js";
import { FLOATING, tensorWaysOf, waysOf } from "./ways.js";

const MOST_CAPTURES = 6;

/** Returns the first question about a model: what can be asked of its inputs and its first output. */
export function startOf(detail: ModelDetail, name: string): Draft {
  const [output] = detail.outputs;
  const differentiable = mayInspect(detail) && (output === undefined || FLOATING.includes(output.dataType));
  const byClass = output === undefined || output.shape.length === 2;
  const required = detail.inputs.filter(({ optional }) => !optional);
  const floating = differentiable && required.some(({ dataType }) => FLOATING.includes(dataType));
  const parts = detail.modules.filter((each) => each.name !== "");
  const inner = parts.filter(({ type }) => /^(Conv[123]d|Linear)$/.test(type)).map((each) => each.name);
  const last = parts.findLast(({ type }) => /^Conv2d$/.test(type))?.name;
  const embedding = differentiable ? parts.find(({ type }) => type === "Embedding")?.name : undefined;
  return {
    ...emptyDraft(name),
    ...(isTelling(detail) ? { inputs: exampleOf(detail) } : {}),
    ...(byClass ? {} : { target: create(TargetSchema, { kind: { case: "sum", value: {} } }) }),
    captures: spread(inner, MOST_CAPTURES),
    attributions: [
      ...(floating ? [requestFor("integratedGradients", detail), requestFor("saliency", detail)] : []),
      ...(floating && last !== undefined ? [requestFor("layerGradCam", detail, last)] : []),
      ...(!floating && embedding !== undefined ? [requestFor("layerIntegratedGradients", detail, embedding)] : []),
    ],
    inputGradients: floating,
    attributionErrorsInPlace: true,
  };
}

/** Whether the caller may look into a model: who may not is told none of its modules. */
export function mayInspect({ modules }: Pick<ModelDetail, "modules">): boolean {
  return modules.length > 0;
}

/** Returns the model's own example. */
export function exampleOf({ example }: ModelDetail): Question["inputs"] {
  return byName(example);
}

/** Whether to start from the example: not where a person has a text or a file, nor from a blank picture. */
function isTelling(detail: ModelDetail): boolean {
  const blank = Object.values(byName(detail.example)).every((each) => new Set(elements(each)).size === 1);
  const drawn = detail.inputs.some((each) => tensorWaysOf(each)[0] === "draw");
  return detail.example.length > 0 && waysOf(detail)[0] === "tensors" && !(blank && drawn);
}
