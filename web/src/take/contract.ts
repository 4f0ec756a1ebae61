/** A question as programs that send the contract's JSON: TypeScript, and curl for the shell. */

import { DataType, type Question, type Tensor } from "@cutaway/client";
import { jsonOf, tensorsIn } from "../state/draft.js";

/** The file that a question is saved to. */
export const QUESTION_FILE = "question.json";

/** A longer question does not stand in a program. */
const LONGEST = 20_000;

/** Where and as whom to ask. */
export interface Server {
  /** `http://127.0.0.1:8080` */
  readonly url: URL;
  readonly hasToken: boolean;
  /** The version of the model that answered. */
  readonly version: string;
}

/** Returns the question in the contract's JSON, inputs included. */
export function jsonText(question: Question): string {
  return JSON.stringify(jsonOf(question, true));
}

/** Whether a program reads the question from its file: where it is long, or has the bytes of files. */
export function isForFile(question: Question): boolean {
  const { inputs } = question;
  const hasFiles = Array.isArray(inputs) && inputs.some((each) => typeof each !== "string");
  return hasFiles || jsonText(question).length > LONGEST;
}

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

/** Returns the program in TypeScript. */
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
  const tensors = Object.entries(tensorsIn(question)).map(
    ([name, each]) => `${JSON.stringify(name)}: ${tensorOf(each)}`,
  );
  const inputs = Array.isArray(question.inputs) ? JSON.stringify(question.inputs) : `{ ${tensors.join(", ")} }`;
  return `{\n  ...questionOf(${parts}),\n  inputs: ${inputs},\n}`;
}

function tensorOf({ data, shape, dataType }: Tensor): string {
  const numbers = data instanceof BigInt64Array ? Array.from(data, (each) => `${each}n`) : Array.from(data, String);
  return `tensor(${data.constructor.name}.from([${numbers.join(", ")}]), [${shape.join(", ")}], DataType.${DataType[dataType]})`;
}
