/** A question for the shell, and for a job over a data set. */

import type { Question, Tensor } from "@cutaway/client";
import { jsonOf } from "../state/draft.js";
import { type Plain, type PlainQuestion, plainOf } from "./plain.js";
import type { Server } from "./python.js";

/** A longer question is in a file beside the command. */
const LONGEST = 20_000;

/** The file that a long question is saved to. */
export const QUESTION_FILE = "question.json";

/** Returns the question in the contract's JSON, inputs included. */
export function jsonText(question: Question): string {
  return JSON.stringify(jsonOf(question, true));
}

/** Returns the command for curl. */
export function curlOf(question: Question, { host, secure, hasToken }: Server): string {
  const url = `${secure ? "https" : "http"}://${host}/v1/models/${question.model}:inspect`;
  const text = jsonText(question);
  const data = text.length > LONGEST ? `@${QUESTION_FILE}` : quoted(text);
  const token = hasToken ? ` \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"` : "";
  return `curl -s ${quoted(url)} -H 'Content-Type: application/json'${token} \\\n  --data ${data}\n`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Returns the job that asks the same about every row of a data set; undefined if YAML has no words for a part of it. */
export function jobOf(question: Question): string | undefined {
  const plain = plainOf(question);
  if (plain === undefined) return undefined;
  const [name = "", version] = question.model.split("/versions/");
  return [
    `model: {archive: ${text(`${name}-${version ?? "1.0"}.mar`)}} # the model's archive`,
    "data: {path: data.parquet} # the data set",
    ...inputsOf(question.inputs),
    ...(plain.target === undefined ? [] : [`target: ${flow(plain.target)}`]),
    "request:",
    ...requestOf(plain),
    "output: {folder: explained, keep_inputs: true}",
    "",
  ].join("\n");
}

function inputsOf(inputs: Question["inputs"]): string[] {
  if (Array.isArray(inputs)) return ["inputs: {column: input} # the column with the files or texts"];
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
  return [
    "inputs:",
    ...tensors.map(
      ([name, { shape }]) => `  ${text(name)}: {column: ${text(name)}, shape: [${shape.slice(1).join(", ")}]}`,
    ),
  ];
}

function requestOf({ captures, methods, inputGradients, errorsInPlace }: PlainQuestion): string[] {
  return [
    ...(methods.length ? ["  attributions:"] : []),
    ...methods.map(({ name, fields }) => `    - ${flow({ method: name, ...fields })}`),
    ...(captures.length ? ["  captures:"] : []),
    ...captures.map(({ key, where, at }) => `    - ${flow({ [key]: where, ...(at.length ? { at } : {}) })}`),
    ...(inputGradients ? ["  input_gradients: true"] : []),
    ...(errorsInPlace ? ["  attribution_errors_in_place: true"] : []),
    "  check: same_pass",
  ];
}

/** Returns a value as YAML writes it in one line. */
function flow(value: Plain): string {
  if (typeof value === "string") return text(value);
  if (typeof value !== "object") return String(value);
  if (Array.isArray(value)) return `[${(value as readonly Plain[]).map(flow).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([name, each]) => `${text(name)}: ${flow(each)}`)
    .join(", ")}}`;
}

/** Returns a text as YAML reads it: quoted, unless it is a plain word. */
function text(word: string): string {
  return /^[A-Za-z_][\w./-]*$/.test(word) && !/^(y|n|yes|no|on|off|true|false|null)$/i.test(word)
    ? word
    : JSON.stringify(word);
}
