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
import type { Server } from "./python.js";

/** Returns the program. */
export function typescriptOf(question: Question, { host, secure, hasToken }: Server): string {
  const message = messageOf({ ...question, inputGradients: false });
  message.input = { case: undefined };
  const { inputGradients } = question;
  const parts = partsOf(reflect(InspectRequestSchema, message));
  if (inputGradients) parts.push(`inputGradients: ${JSON.stringify(inputGradients)}`);
  parts.splice(1, 0, `inputs: ${inputsOf(question.inputs)}`);
  const arrays = Array.isArray(question.inputs) ? "Client" : "Client, DataType, tensor";
  return `import { ${arrays} } from "@cutaway/client";

const client = new Client("${secure ? "https" : "http"}://${host}"${hasToken ? ", { token: process.env.CUTAWAY_TOKEN }" : ""});
const result = await client.inspect({
${parts.map((part) => `  ${part},\n`).join("")}});
console.log(result.predictions, result.attributions);
`;
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
  if (Array.isArray(inputs)) {
    const examples = (inputs as Exclude<Question["inputs"], Readonly<Record<string, Tensor>>>).map((each) =>
      typeof each === "string"
        ? JSON.stringify(each)
        : `{ data: Uint8Array.from([${each.data.join(", ")}]), mediaType: ${JSON.stringify(each.mediaType)} }`,
    );
    return `[${examples.join(", ")}]`;
  }
  const tensors = Object.entries(inputs as Readonly<Record<string, Tensor>>);
  return `{ ${tensors.map(([name, each]) => `${JSON.stringify(name)}: ${tensorOf(each)}`).join(", ")} }`;
}

function tensorOf({ data, shape, dataType }: Tensor): string {
  const numbers = data instanceof BigInt64Array ? Array.from(data, (each) => `${each}n`) : Array.from(data, String);
  return `tensor(${data.constructor.name}.from([${numbers.join(", ")}]), [${shape.join(", ")}], DataType.${DataType[dataType]})`;
}
