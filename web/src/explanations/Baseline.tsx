/** What an explanation compares the input with: its baseline by name, and others that a person may take instead. */

import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { fromMessage, type Tensor } from "@cutaway/client";
import { blur2 } from "d3-array";
import { numbers } from "../ask/arrays.js";
import { methodIn, type Option, optionOf, tensorJson, withOption } from "../ask/methods.js";
import { FLOATING } from "../ask/ways.js";
import { tensorIn } from "../jobs/folder.js";
import { folder, samples } from "../jobs/rows.js";
import { meansOf } from "../jobs/statistics.js";
import { type Numbers, numbersOf, statisticsOf } from "../measures/index.js";
import { ask, asked as last, askedParts, exampleOf, type Exchange, inputsOf } from "../state/index.js";
import { Button } from "../ui/index.js";
import { type ExplanationProps, isImage } from "./Values.js";

/** A baseline: what it is called, and the contract's JSON by input. */
type Choice = Readonly<{ name: string; byInput: JsonObject }>;

/** Names the baseline; a click takes another one, and asks. Nothing for a method without one. */
export function Baseline({ asked, row, attribution }: ExplanationProps): preact.JSX.Element | null {
  const { attributions } = askedParts(asked.question);
  const index = asked.reply.attributions.indexOf(attribution);
  const request = attributions.length === asked.reply.attributions.length ? attributions[index] : undefined;
  const path = request && methodIn(request)?.options.find((each) => each.path.includes("byInput"))?.path;
  if (!request || !path?.includes("baselines")) return null;
  const option: Option = { path: path.slice(0, path.indexOf("byInput") + 1), label: "", kind: "json" };
  const now = JSON.parse(optionOf(request, option) || "{}") as JsonObject;
  const all = path.includes("distribution") ? [] : choicesFor({ asked, row, attribution });
  const isNow = ({ byInput }: Choice): boolean => JSON.stringify(byInput) === JSON.stringify(now);
  const take = ({ byInput }: Choice): void => {
    const changed = withOption(request, option, JSON.stringify(byInput));
    void ask({ attributions: attributions.with(index, changed) });
  };
  return (
    <p class="baseline small">
      Baseline: <strong>{all.find(isNow)?.name ?? Object.values(now).map(wordsOf).join(", ")}</strong>
      {asked === last.value &&
        all
          .filter((each) => !isNow(each))
          .map((each) => <Button key={each.name} text={each.name} class="quiet small" onClick={() => take(each)} />)}
    </p>
  );
}

/** Returns the baseline of one input in words. */
function wordsOf(json: JsonValue | undefined): string {
  const [kind, value] = Object.entries((json ?? {}) as JsonObject)[0] ?? [];
  if (kind === "distribution") return `${((value as JsonObject)["shape"] as string[])[0] ?? ""} samples`;
  return kind === "tensor"
    ? "a tensor of the question"
    : `${kind === "tokenId" ? "token " : ""}${JSON.stringify(value)}`;
}

/** Tokens that mark places of a text, and are none of its words: [CLS], <s>, <|endoftext|>. */
const SPECIAL = /^(\[[A-Z]+\d*\]|<[^<>]+>)$/;

/** Returns the baselines that make sense for what was explained, the default first. */
function choicesFor({ asked, row, attribution: { message, method, layer, values } }: ExplanationProps): Choice[] {
  const { tokens } = message;
  if (tokens?.input && tokens.ids) {
    const ids = fromMessage(tokens.ids);
    const texts = tokens.texts.flatMap((each) => each.tokens);
    const kept = Array.from(numbersOf(ids), (id, at) => (SPECIAL.test(texts[at] ?? "") ? id : 0));
    const keeps = texts.length === kept.length && kept.some(Boolean);
    const special = { name: "special tokens stay", byInput: { [tokens.input]: tensorOf(kept, ids) } };
    return [{ name: "token 0", byInput: {} }, ...(keeps ? [special] : [])];
  }
  const isPicture = ({ shape }: Tensor): boolean => isImage({ shape: shape.slice(1) });
  const isOwn = layer === "" || method.startsWith("Neuron");
  const specs = asked.model.inputs.filter((each) => (isOwn ? each.name in values : FLOATING.includes(each.dataType)));
  const made = (name: string, change: (tensor: Tensor, input: string) => JsonValue | undefined): Choice[] => {
    const all = specs.map(({ name: input }) => {
      const tensor = inputsOf(asked)[input];
      return [input, tensor && change(tensor, input)] as const;
    });
    return all.length && all.every(([, json]) => json)
      ? [{ name, byInput: Object.fromEntries(all) as JsonObject }]
      : [];
  };
  return [
    { name: "zeros", byInput: {} },
    ...made("mean of the job", (tensor, input) => {
      const mean = meanOfJob(asked, input, tensor);
      return mean && tensorOf(mean, tensor, 1);
    }),
    ...made("its mean", (tensor) =>
      isPicture(tensor) ? { scalar: statisticsOf(exampleOf(asked, tensor, row).values).mean } : undefined,
    ),
    ...made("blurred", (tensor) =>
      isPicture(tensor) ? tensorOf(blurred(numbersOf(tensor), tensor.shape), tensor) : undefined,
    ),
  ];
}

/** Returns numbers as the baseline of an input, of as many rows as it has, or of `rows`. */
function tensorOf(values: Numbers | number[], { shape, dataType }: Tensor, rows = shape[0] ?? 1): JsonObject {
  return {
    tensor: JSON.parse(tensorJson(numbers(Array.from(values), [rows, ...shape.slice(1)], dataType))) as JsonValue,
  };
}

/** Returns the mean of an input over the rows of the job that is open, if it is one of this model. */
function meanOfJob({ model }: Exchange, input: string, { shape }: Tensor): Float64Array | undefined {
  const [open, read] = [folder.value, samples.value];
  const column = open?.columns.find((each) => each["kind"] === "input" && each["input"] === input);
  if (open?.manifest.model !== model.model?.model || !column || !read || read instanceof Error) return undefined;
  const parts = read.flatMap(({ cells }) => tensorIn(cells, column) ?? []);
  const [first] = parts;
  if (!first || parts.some((each) => String(each.shape) !== String(shape.slice(1)))) return undefined;
  return meansOf(parts);
}

/** Returns planes [..., height, width], each blurred over windows of a quarter of its sides. */
export function blurred(values: Numbers, shape: readonly number[]): Float64Array {
  const [height = 1, width = 1] = shape.slice(-2);
  const all = Float64Array.from(values);
  for (let at = 0; at < all.length; at += height * width) {
    const data = all.subarray(at, at + height * width);
    blur2({ data, width, height }, Math.ceil(width / 8), Math.ceil(height / 8));
  }
  return all;
}
