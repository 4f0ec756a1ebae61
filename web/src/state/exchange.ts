/** What every view shows: a question, and what came back. */

import { create } from "@bufbuild/protobuf";
import { HookPoint, type Inspection, type ModelDetail, type Question, type Tensor } from "@cutaway/client";
import { type Target, TargetSchema } from "@cutaway/contract/target_pb";
import { type Part, partOf, sizeOf } from "../measures/index.js";
import { askedParts, tensorsIn } from "./draft.js";

/** A question with its answer. */
export interface Exchange {
  /** The model that was asked, with its module tree. */
  readonly model: ModelDetail;
  readonly question: Question;
  readonly reply: Inspection;
  /** Whether all explanations are there; if not, they are being computed, or were stopped. */
  readonly whole: boolean;
  /** Milliseconds from the call to the decoded reply, as this page saw them. */
  readonly milliseconds: number;
  /** When it was answered. */
  readonly when: Date;
}

/** What every view takes. */
export interface ViewProps {
  readonly asked: Exchange;
  /** The example that is shown, from 0. */
  readonly row: number;
}

/** Returns how many examples an answer is about. */
export function rowsOf({ question, reply: { classes, predictions } }: Exchange): number {
  const tensors = [...Object.values(predictions), ...Object.values(tensorsIn(question))];
  const [first = 1] = tensors.find(({ shape }) => shape.length)?.shape ?? [question.inputs.length];
  return classes.length || Number(first);
}

/** Returns the inputs of an answer: as they were sent, or as a hook saw them going into the model, if they are known. */
export function inputsOf({ question, reply }: Exchange): Readonly<Record<string, Tensor>> {
  const seen = reply.captured.filter(({ module, point }) => module === "" && point === HookPoint.INPUT);
  return { ...Object.fromEntries(seen.map(({ path, tensor }) => [path, tensor])), ...tensorsIn(question) };
}

/** Returns what was captured at outputs, as far as the question left it whole. */
export function wholeOutputs({
  question,
  reply,
}: Pick<Exchange, "question" | "reply">): Inspection["captured"][number][] {
  const whole = askedParts(question).captures.every(
    ({ reduction, slices, call, token, heads }) =>
      reduction === undefined && !slices.length && call === undefined && token.case === undefined && !heads.length,
  );
  return whole ? reply.captured.filter(({ point }) => point === HookPoint.OUTPUT) : [];
}

/** Returns one example of a tensor of an answer. */
export function exampleOf(asked: Exchange, tensor: Tensor, row: number): Part {
  return partOf(tensor, row, rowsOf(asked));
}

/** Returns one example of a gradient, of the largest target where there are several. */
export function gradientOf(asked: Exchange, tensor: Tensor, row: number): Part {
  const { values, shape } = exampleOf(asked, tensor, row);
  if (!asked.reply.message.predictions?.targetsPerExample) return { values, shape };
  return { values: values.subarray(0, sizeOf(shape.slice(1))), shape: shape.slice(1) };
}

/** Returns what an element of the explained output is: a class with its label, if it is one. */
export function elementOf(
  { model, question, reply }: Exchange,
  index: number,
): { kind: "class" | "element"; name: string } {
  const [first] = reply.message.predictions?.outputs ?? [];
  const isFirst = ["", first?.name].includes(askedParts(question).target?.output ?? "");
  const name = (isFirst && model.labels[index]) || String(index);
  return { kind: isFirst && reply.classes.length > 0 ? "class" : "element", name };
}

/** Returns the index of the element that gradients of an answer are of, the largest of several; undefined for none. */
export function targetOf({ reply }: Exchange, row: number): number | undefined {
  const { targets = [], targetsPerExample = 0 } = reply.message.predictions ?? {};
  const index = targets[row * Math.max(1, targetsPerExample)];
  return index === undefined ? undefined : Number(index);
}

/** Returns the two classes that a target is the difference of: why the one, and not the other? Undefined for other targets. */
export function contrastOf(target: Target | undefined, row = 0): [number, number] | undefined {
  if (target?.kind.case !== "contrast") return undefined;
  const pair = [target.kind.value.target, target.kind.value.other].flatMap((each) =>
    each?.kind.case === "classIndex" ? [Number(each.kind.value.indices.at(row) ?? each.kind.value.indices[0])] : [],
  );
  return pair.length === 2 ? (pair as [number, number]) : undefined;
}

/** Returns the target that is why the one class, and not the other. */
export function contrast(one: number, other: number, output = ""): Target {
  const ofClass = (index: number): Target =>
    create(TargetSchema, { kind: { case: "classIndex", value: { indices: [BigInt(index)] } } });
  const value = { target: ofClass(one), other: ofClass(other) };
  return create(TargetSchema, { output, kind: { case: "contrast", value } });
}

/** Returns what gradients of an answer are of, in words. */
export function targetText(asked: Exchange, row: number): string {
  const pair = contrastOf(askedParts(asked.question).target, row)?.map((index) => elementOf(asked, index).name);
  if (pair) return `the difference of “${pair[0] ?? ""}” and “${pair[1] ?? ""}”`;
  const index = targetOf(asked, row);
  if (index === undefined) return "the target that was asked for";
  const { kind, name } = elementOf(asked, index);
  return `the ${kind === "class" ? "logit of" : "output"} “${name}”`;
}

/** Returns the bytes of the numbers of all these tensors. */
export function bytesOf(...parts: readonly Readonly<Record<string, Tensor>>[]): number {
  return parts.flatMap((tensors) => Object.values(tensors)).reduce((sum, { data }) => sum + data.byteLength, 0);
}
