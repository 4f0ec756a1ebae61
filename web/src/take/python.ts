/** A question as a Python program. */

import { DataType, type Question, type Tensor } from "@cutaway/client";
import { METHODS } from "../ask/methods.js";
import { tensorsIn } from "../state/draft.js";
import { isForFile, QUESTION_FILE, type Server } from "./contract.js";
import { type Fields, type Plain, plainOf, snake } from "./plain.js";

/** Returns the program. */
export function pythonOf(question: Question, server: Server): string {
  const client = [
    `"${server.url.host}"`,
    'transport="connect"',
    ...(server.url.protocol === "https:" ? ["tls=True"] : []),
    ...(server.hasToken ? ['token=os.environ["CUTAWAY_TOKEN"]'] : []),
  ].join(", ");
  const plain = plainOf(question);
  const imports = server.hasToken ? "import os\n\n" : "";
  if (plain === undefined || isForFile(question)) return `${imports}${fromFile(client)}`;
  const { target, captures, attributions } = plain;
  const { setup, argument } = inputsOf(question);
  const lines = [
    literal(question.model),
    argument,
    ...(target === "" ? [] : [`target=${targetOf(target)}`]),
    ...(captures.length ? [`captures=[${captures.map(captureOf).join(", ")}]`] : []),
    ...(plain.edits.length ? [`edits=[${plain.edits.map(editOf).join(", ")}]`] : []),
    ...(plain.compare ? ["compare=True"] : []),
    ...(plain.inputGradients ? ["input_gradients=True"] : []),
    ...(attributions.length ? [`attributions=[${attributions.map(methodOf).join(", ")}]`] : []),
    ...(plain.errorsInPlace ? ["attribution_errors_in_place=True"] : []),
  ];
  return `${imports}import cutaway as ca
${setup ? "import numpy as np\n" : ""}${setup ? `\n${setup}` : ""}
with ca.Client(${client}) as client:
    result = client.inspect(
${lines.map((line) => `        ${line},\n`).join("")}    )
print(result)
`;
}

function fromFile(client: string): string {
  return `import cutaway as ca
from cutaway.v1.inspection_pb2 import InspectRequest
from cutaway.wire import requests
from google.protobuf import json_format

with open("${QUESTION_FILE}") as file:  # what "Save the question" has saved
    request = requests.decode(json_format.Parse(file.read(), InspectRequest()).SerializeToString())
with ca.Client(${client}) as client:
    result = client.ask(request)
print(result)
`;
}

function inputsOf(question: Question): { setup: string; argument: string } {
  if (Array.isArray(question.inputs)) {
    const texts = (question.inputs as readonly string[]).map(literal);
    return { setup: "", argument: texts.length === 1 ? (texts[0] ?? "") : `[${texts.join(", ")}]` };
  }
  const tensors = Object.entries(tensorsIn(question));
  return {
    setup: tensors.map(([, each], index) => `input${index} = ${arrayOf(each)}\n`).join(""),
    argument: `{${tensors.map(([name], index) => `${literal(name)}: input${index}`).join(", ")}}`,
  };
}

function arrayOf({ data, shape, dataType }: Tensor): string {
  const numbers = Array.from(data as ArrayLike<number | bigint>, numberText);
  const type = dataType === DataType.BOOL ? "bool" : DataType[dataType].toLowerCase();
  return `np.array([${numbers.join(", ")}], np.${type}).reshape(${shape.join(", ")})`;
}

function numberText(each: number | bigint): string {
  const text = String(each);
  return /\d|e/.test(text) && text !== "Infinity" ? text : `float("${text}")`;
}

function captureOf({ module, ...fields }: Fields): string {
  const words = [...(module === undefined ? [] : [literal(module)]), ...keywords(fields)];
  return module !== undefined && words.length === 1 ? literal(module) : `ca.Capture(${words.join(", ")})`;
}

function methodOf({ method, ...fields }: Fields): string {
  const known = METHODS.find(({ field }) => snake(field) === method)?.name;
  return `ca.${known ?? ""}(${keywords(fields).join(", ")})`;
}

function editOf({ edit, slices, ...fields }: Fields): string {
  const ranges = ((slices ?? []) as readonly Fields[]).map(
    (each) => `ca.Slice(${Object.values(each).map(literal).join(", ")})`,
  );
  const words = [...keywords(fields), ...(ranges.length ? [`slices=(${ranges.join(", ")},)`] : [])];
  return `ca.${(edit as string).replace(/^./, (first) => first.toUpperCase())}(${words.join(", ")})`;
}

/** Returns values as keyword arguments. */
function keywords(fields: Fields): string[] {
  return Object.entries(fields).map(([name, value]) => `${name}=${literal(value)}`);
}

function targetOf(target: Plain): string {
  if (typeof target !== "object" || Array.isArray(target)) return literal(target);
  const [[kind, value] = ["", 0]] = Object.entries(target);
  return kind === "top_k" ? `ca.TopK(${literal(value)})` : `ca.Output${kind === "sum" ? "Sum" : "Norm"}()`;
}

/** Returns a value as Python writes it; several as a tuple. */
function literal(value: Plain): string {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  return `(${Object.values(value).map(literal).join(", ")})`;
}
