/** A question as a job over a data set. */

import type { Question } from "@cutaway/client";
import { tensorsIn } from "../state/draft.js";
import type { Server } from "./contract.js";
import { type Fields, type Plain, plainOf } from "./plain.js";

/** Returns the job that asks the same about every row; a comment if YAML has no words for a part of it. */
export function jobOf(question: Question, { version }: Server): string {
  const plain = plainOf(question);
  if (plain === undefined)
    return "# This page writes no job for a question with these parts: docs/batch.md says how.\n";
  const [name = ""] = question.model.split("/versions/");
  return [
    `model: {archive: ${text(`${name}-${version}.mar`)}} # the model's archive`,
    "data: {path: data.parquet} # the data set",
    ...inputsOf(question),
    ...(plain.target === "" ? [] : [`target: ${text(plain.target)}`]),
    "request:",
    ...listed("attributions", plain.attributions),
    ...listed("captures", plain.captures),
    ...listed("edits", plain.edits),
    ...(plain.inputGradients ? ["  input_gradients: true"] : []),
    "  check: same_pass",
    "output: {folder: explained, keep_inputs: true}",
    "",
  ].join("\n");
}

function inputsOf(question: Question): string[] {
  if (Array.isArray(question.inputs)) return ["inputs: {raw: {column: input}} # the column with the files or texts"];
  const tensors = Object.entries(tensorsIn(question)).map(
    ([name, { shape }]) => `  ${text(name)}: {column: ${text(name)}, shape: [${shape.slice(1).join(", ")}]}`,
  );
  return ["inputs:", ...tensors];
}

function listed(name: string, parts: readonly Fields[]): string[] {
  return parts.length ? [`  ${name}:`, ...parts.map((each) => `    - ${text(each)}`)] : [];
}

/** Returns a value as YAML reads it in one line: as JSON, which is YAML. */
const text: (value: Plain) => string = JSON.stringify;
