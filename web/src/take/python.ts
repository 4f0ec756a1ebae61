/** A question as a Python program. */

import type { Question, Tensor } from "@cutaway/client";
import { DataType } from "@cutaway/client";
import { METHODS } from "../ask/methods.js";
import { isForFile, QUESTION_FILE, type Server } from "./json.js";
import { type Plain, type PlainMethod, plainOf, snake } from "./plain.js";

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
  const { setup, argument } = inputsOf(question.inputs);
  const captures = plain.captures.map(({ key, where, at }) => {
    const named = key === "module" ? literal(where) : `${key}=${literal(where)}`;
    return key === "module" && ["", "output"].includes(at.join())
      ? named
      : `ca.Capture(${named}${at.length ? `, at=${literal(at.length === 1 ? (at[0] ?? "") : at)}` : ""})`;
  });
  const lines = [
    literal(plain.model),
    argument,
    ...(plain.target === undefined ? [] : [`target=${targetOf(plain.target)}`]),
    ...(captures.length ? [`captures=[${captures.join(", ")}]`] : []),
    ...(plain.inputGradients ? ["input_gradients=True"] : []),
    ...(plain.methods.length ? [`attributions=[${plain.methods.map(methodOf).join(", ")}]`] : []),
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

with open("${QUESTION_FILE}") as file:
    request = requests.decode(json_format.Parse(file.read(), InspectRequest()).SerializeToString())
with ca.Client(${client}) as client:
    result = client.ask(request)
print(result)
`;
}

function inputsOf(inputs: Question["inputs"]): { setup: string; argument: string } {
  if (Array.isArray(inputs)) {
    const texts = (inputs as readonly string[]).map(literal);
    return { setup: "", argument: texts.length === 1 ? (texts[0] ?? "") : `[${texts.join(", ")}]` };
  }
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
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

function methodOf({ name, fields }: PlainMethod): string {
  const known = METHODS.find((each) => snake(each.field) === name)?.name ?? name;
  const words = Object.entries(fields).map(([field, value]) => `${field}=${literal(value)}`);
  return `ca.${known}(${words.join(", ")})`;
}

function targetOf(target: Plain): string {
  if (typeof target !== "object" || Array.isArray(target)) return literal(target);
  const [[kind, value] = ["", {}]] = Object.entries(target);
  return kind === "top_k" ? `ca.TopK(${literal(value)})` : `ca.Output${kind === "sum" ? "Sum" : "Norm"}()`;
}

/** Returns a value as Python writes it. */
function literal(value: Plain): string {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${(value as readonly Plain[]).map(literal).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`)
    .join(", ")}}`;
}
