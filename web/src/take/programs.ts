/** A question as programs, which the server writes: it knows the words of every language. */

import { type Question, requestOf, type Tensor } from "@cutaway/client";
import { client, filesIn, HOME, tensorsIn, textOf, token } from "../state/index.js";

/** The languages, as people call them. */
export const LANGUAGES = { python: "Python", typescript: "TypeScript", curl: "curl", job: "job.yaml" } as const;

/** A language. */
export type Language = keyof typeof LANGUAGES;

/** The file that a question is saved to. */
export const QUESTION_FILE = "question.json";

/** A longer question does not stand in a program. */
const LONGEST = 20_000;

/** Whether a program reads the question from its file: where it is long, or has the bytes of files. */
export function isForFile(question: Question): boolean {
  return filesIn(question).length > 0 || textOf(question, true).length > LONGEST;
}

/** Returns a question about no rows of its inputs: all that a job needs of them. */
function withoutRows(question: Question): Question {
  const empty = ({ data, shape, ...rest }: Tensor): Tensor => {
    return { ...rest, data: data.subarray(0, 0), shape: [0, ...shape.slice(1)] };
  };
  const tensors = Object.entries(tensorsIn(question)).map(([name, each]) => [name, empty(each)] as const);
  const raw = requestOf(question).input;
  const bare = raw.case === "raw" && raw.value.examples.map(({ mediaType }) => ({ mediaType, data: new Uint8Array() }));
  return { ...question, inputs: bare || Object.fromEntries(tensors) };
}

/** Returns the program, or why there is none; it reads the question from its file, where that is long. */
export async function programOf(question: Question, language: Language): Promise<string> {
  client.peek(); // which throws where a token would be shown to the network
  const words = new URLSearchParams({ language, address: HOME.href });
  const reply = await fetch(new URL(`v1/models/${encodeURI(question.model)}:program?${words.toString()}`, HOME), {
    method: "POST",
    headers: { "content-type": "application/json", ...(token.value && { authorization: `Bearer ${token.value}` }) },
    body: language === "job" ? textOf(withoutRows(question), true) : textOf(question, !isForFile(question)),
  });
  if (reply.ok) return reply.text();
  const { detail } = (await reply.json()) as { detail?: string };
  return `The server wrote no program: ${detail ?? reply.statusText}`;
}
