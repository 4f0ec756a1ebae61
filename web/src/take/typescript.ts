/** A question as a TypeScript program. */

import { isFieldSet } from "@bufbuild/protobuf";
import {
  isReflectList,
  isReflectMap,
  isReflectMessage,
  reflect,
  type ReflectMessage,
} from "@bufbuild/protobuf/reflect";
import { DataType, type Question, type Tensor } from "@cutaway/client";
import { InspectRequestSchema } from "@cutaway/contract/inspection_pb";
import { messageOf } from "../state/draft.js";
import { isForFile, QUESTION_FILE, type Server } from "./json.js";

/** Returns the program. */
export function typescriptOf(question: Question, { url, hasToken }: Server): string {
  const inFile = isForFile(question);
  const names = ["Client", ...(inFile ? ["questionOf"] : Array.isArray(question.inputs) ? [] : ["DataType", "tensor"])];
  return `${inFile ? 'import { readFile } from "node:fs/promises";\n' : ""}import { ${names.join(", ")} } from "@cutaway/client";

const client = new Client("${url.href}"${hasToken ? ", { token: process.env.CUTAWAY_TOKEN }" : ""});
const result = await client.inspect(${inFile ? `questionOf(JSON.parse(await readFile("${QUESTION_FILE}", "utf8")))` : written(question)});
console.log(result.predictions, result.attributions);
`;
}

function written(question: Question): string {
  const message = messageOf({ ...question, inputGradients: false });
  message.input = { case: undefined };
  const { inputGradients } = question;
  const parts = partsOf(reflect(InspectRequestSchema, message));
  if (inputGradients) parts.push(`inputGradients: ${JSON.stringify(inputGradients)}`);
  parts.splice(1, 0, `inputs: ${inputsOf(question.inputs)}`);
  return `{\n${parts.map((part) => `  ${part},\n`).join("")}}`;
}

/** Returns the fields that are set, as `name: value`. */
function partsOf(message: ReflectMessage): string[] {
  return message.members.flatMap((member) => {
    if (member.kind === "oneof") {
      const field = message.oneofCase(member);
      return field
        ? [`${member.localName}: { case: "${field.localName}", value: ${literal(message.get(field))} }`]
        : [];
    }
    return isFieldSet(message.message, member) ? [`${member.localName}: ${literal(message.get(member))}`] : [];
  });
}

function literal(value: unknown): string {
  if (isReflectMessage(value)) return `{ ${partsOf(value).join(", ")} }`;
  if (isReflectList(value)) return `[${Array.from(value, literal).join(", ")}]`;
  if (isReflectMap(value))
    return `{ ${Array.from(value, ([key, each]) => `${JSON.stringify(key)}: ${literal(each)}`).join(", ")} }`;
  if (value instanceof Uint8Array) return `Uint8Array.from([${value.join(", ")}])`;
  return typeof value === "bigint" ? `${value}n` : JSON.stringify(value);
}

function inputsOf(inputs: Question["inputs"]): string {
  if (Array.isArray(inputs)) return JSON.stringify(inputs);
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
  return `{ ${tensors.map(([name, each]) => `${JSON.stringify(name)}: ${tensorOf(each)}`).join(", ")} }`;
}

function tensorOf({ data, shape, dataType }: Tensor): string {
  const numbers = data instanceof BigInt64Array ? Array.from(data, (each) => `${each}n`) : Array.from(data, String);
  return `tensor(${data.constructor.name}.from([${numbers.join(", ")}]), [${shape.join(", ")}], DataType.${DataType[dataType]})`;
}
