/** A question for the shell, and for a job over a data set. */

import type { Question, Tensor } from "@cutaway/client";
import { isForFile, jsonText, QUESTION_FILE, type Server } from "./json.js";
import { type Plain, type PlainQuestion, plainOf } from "./plain.js";

/** Returns the command for curl. */
export function curlOf(question: Question, { url, hasToken }: Server): string {
  const address = new URL(`v1/models/${question.model}:inspect`, url).href;
  const data = isForFile(question) ? `@${QUESTION_FILE}` : quoted(jsonText(question));
  const token = hasToken ? ` \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"` : "";
  return `curl -s ${quoted(address)} -H 'Content-Type: application/json'${token} \\\n  --data ${data}\n`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Returns the job that asks the same about every row of a data set; undefined if YAML has no words for a part of it. */
export function jobOf(question: Question, version: string): string | undefined {
  const plain = plainOf(question);
  if (plain === undefined) return undefined;
  const [name = ""] = question.model.split("/versions/");
  return [
    `model: {archive: ${text(`${name}-${version}.mar`)}} # the model's archive`,
    "data: {path: data.parquet} # the data set",
    ...inputsOf(question.inputs),
    ...(plain.target === undefined ? [] : [`target: ${text(plain.target)}`]),
    "request:",
    ...requestOf(plain),
    "output: {folder: explained, keep_inputs: true}",
    "",
  ].join("\n");
}

function inputsOf(inputs: Question["inputs"]): string[] {
  if (Array.isArray(inputs)) return ["inputs: {raw: {column: input}} # the column with the files or texts"];
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
  return [
    "inputs:",
    ...tensors.map(
      ([name, { shape }]) => `  ${text(name)}: {column: ${text(name)}, shape: [${shape.slice(1).join(", ")}]}`,
    ),
  ];
}

function requestOf({ captures, methods, inputGradients }: PlainQuestion): string[] {
  return [
    ...(methods.length ? ["  attributions:"] : []),
    ...methods.map(({ name, fields }) => `    - ${text({ method: name, ...fields })}`),
    ...(captures.length ? ["  captures:"] : []),
    ...captures.map(({ key, where, at }) => `    - ${text({ [key]: where, ...(at.length ? { at } : {}) })}`),
    ...(inputGradients ? ["  input_gradients: true"] : []),
    "  check: same_pass",
  ];
}

/** Returns a value as YAML reads it in one line: as JSON, which is YAML. */
const text: (value: Plain) => string = JSON.stringify;
