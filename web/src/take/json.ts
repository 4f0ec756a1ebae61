/** What programs in every language need of a question: its JSON, and where to send it. */

import type { Question } from "@cutaway/client";
import { jsonOf } from "../state/draft.js";

/** The file that a question is saved to. */
export const QUESTION_FILE = "question.json";

/** A longer question does not stand in a program. */
const LONGEST = 20_000;

/** Where and as whom to ask. */
export interface Server {
  /** `http://127.0.0.1:8080` */
  readonly url: URL;
  readonly hasToken: boolean;
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
