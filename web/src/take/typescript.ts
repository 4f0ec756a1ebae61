/** A question as a TypeScript program. */

import { DataType, type Question, type Tensor } from "@cutaway/client";
import { jsonOf } from "../state/draft.js";
import { isForFile, QUESTION_FILE, type Server } from "./json.js";

/** Returns the program. */
export function typescriptOf(question: Question, { url, hasToken }: Server): string {
  const inFile = isForFile(question);
  const names = ["Client", "questionOf", ...(inFile || Array.isArray(question.inputs) ? [] : ["DataType", "tensor"])];
  const asked = inFile ? `questionOf(JSON.parse(await readFile("${QUESTION_FILE}", "utf8")))` : written(question);
  return `${inFile ? 'import { readFile } from "node:fs/promises";\n' : ""}import { ${names.join(", ")} } from "@cutaway/client";

const client = new Client("${url.href}"${hasToken ? ", { token: process.env.CUTAWAY_TOKEN }" : ""});
const result = await client.inspect(${asked});
console.log(result.predictions, result.attributions);
`;
}

function written(question: Question): string {
  const parts = JSON.stringify(jsonOf(question, false), null, 2).replaceAll("\n", "\n  ");
  return `{\n  ...questionOf(${parts}),\n  inputs: ${inputsOf(question.inputs)},\n}`;
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
