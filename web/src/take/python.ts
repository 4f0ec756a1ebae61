/** A question as a Python program. */

import type { Question, Tensor } from "@cutaway/client";
import { DataType } from "@cutaway/client";
import { METHODS } from "../ask/methods.js";
import { jsonOf } from "../state/draft.js";
import { type Plain, type PlainMethod, plainOf, snake } from "./plain.js";

/** The most numbers that are written into a program; more are in a file. */
const MOST_WRITTEN = 1024;

/** Where and as whom to ask. */
export interface Server {
  /** `127.0.0.1:8080` */
  readonly host: string;
  readonly secure: boolean;
  readonly hasToken: boolean;
}

/** Returns the program. */
export function pythonOf(question: Question, server: Server): string {
  const client = [
    `"${server.host}"`,
    'transport="connect"',
    ...(server.secure ? ["tls=True"] : []),
    ...(server.hasToken ? ['token=os.environ["CUTAWAY_TOKEN"]'] : []),
  ].join(", ");
  const plain = plainOf(question);
  const imports = server.hasToken ? "import os\n\n" : "";
  if (plain === undefined) return `${imports}${ofJson(question, client)}`;
  const { numpy, setup, argument } = inputsOf(question.inputs);
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
${numpy ? "import numpy as np\n" : ""}${setup ? `\n${setup}` : ""}
with ca.Client(${client}) as client:
    result = client.inspect(
${lines.map((line) => `        ${line},\n`).join("")}    )
print(result)
`;
}

function ofJson(question: Question, client: string): string {
  return `import cutaway as ca
from cutaway.v1 import inspection_pb2
from cutaway.wire import requests
from google.protobuf import json_format

QUESTION = r"""${JSON.stringify(jsonOf(question, true))}"""

request = requests.decode(json_format.Parse(QUESTION, inspection_pb2.InspectRequest()).SerializeToString())
with ca.Client(${client}) as client:
    result = client.ask(request)
print(result)
`;
}

function inputsOf(inputs: Question["inputs"]): { numpy: boolean; setup: string; argument: string } {
  if (Array.isArray(inputs)) {
    const examples = (inputs as readonly unknown[]).map((each, index) =>
      typeof each === "string"
        ? literal(each)
        : `ca.Raw(open("example${index}", "rb").read(), ${literal((each as { mediaType: string }).mediaType)})`,
    );
    return {
      numpy: false,
      setup: "",
      argument: examples.length === 1 ? (examples[0] ?? "") : `[${examples.join(", ")}]`,
    };
  }
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
  const setup = tensors.map(([name, each], index) => `input${index} = ${arrayOf(name, each)}\n`).join("");
  return {
    numpy: true,
    setup,
    argument: `{${tensors.map(([name], index) => `${literal(name)}: input${index}`).join(", ")}}`,
  };
}

function arrayOf(name: string, { data, shape, dataType }: Tensor): string {
  if (data.length > MOST_WRITTEN) return `np.load(${literal(`${name}.npy`)})`;
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
  return `ca.${known === "Lrp" ? "LRP" : known.replace(/Lrp$/, "LRP")}(${words.join(", ")})`;
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
