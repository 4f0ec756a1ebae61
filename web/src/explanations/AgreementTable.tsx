/** How far explanations of the same thing agree with each other. */

import { Heads, Panel } from "../ui/parts.js";
import { type Agreement, agreementOf } from "../measures/agreement.js";
import { type Exchange, exampleOf } from "../state/exchange.js";
import type { ExplanationProps } from "./Values.js";
import { short } from "../ui/text.js";

/** Two explanations; magnitudes are compared where one of them, `unsigned`, has no signs. */
type Pair = Agreement & Readonly<{ one: ExplanationProps; other: ExplanationProps; unsigned?: ExplanationProps }>;

/** What a cosine says, from which on. */
const WORDS = [
  [0.9, "much the same"],
  [0.5, "alike in part"],
  [0.1, "hardly alike"],
  [-0.1, "nothing in common"],
  [-1.1, "opposed"],
] as const;

type Props = Readonly<{ made: readonly ExplanationProps[]; others: readonly ExplanationProps[] }>;

/**
 * Shows each pair of explanations with the same names and shapes, and names those without any: pairs of one answer, or
 * of it and another one, `others`, by the same method.
 */
export function AgreementTable({ made, others }: Props): preact.JSX.Element | null {
  const pairs = made.flatMap((one, at) =>
    (others.length ? others.filter((each) => nameOf(each) === nameOf(one)) : made.slice(at + 1)).flatMap(
      (other) => pairOf(one, other) ?? [],
    ),
  );
  const alone = made.filter((each) => !pairs.some(({ one, other }) => one === each || other === each));
  if (made.length + others.length < 2) return null;
  return (
    <Panel id="agreement" title={others.length ? "Do the two answers agree?" : "Do the methods agree?"}>
      <div class="wide">
        <table class="agreement">
          <Heads of={["Methods", "Cosine", "Rank correlation", "Largest tenth in common", "In words"]} />
          <tbody>
            {pairs.map(({ one, other, cosine, ranks, top, unsigned }, index) => (
              <tr key={index}>
                <th scope="row">
                  {[...new Set([nameOf(one), nameOf(other)])].join(" and ")}
                  {unsigned && <p class="muted small">magnitudes: {nameOf(unsigned)} has no signs here</p>}
                </th>
                <td class="number">{short(cosine)}</td>
                <td class="number">{short(ranks)}</td>
                <td class="number">{short(100 * top, 2)} %</td>
                <td>
                  {WORDS.find(([least]) => cosine >= least)?.[1] ?? "cannot be compared: one is zero or not finite"}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {alone.length > 0 && (
        <p class="muted small">
          Not compared, because no other explanation is of the same places: <bdi>{alone.map(nameOf).join(", ")}</bdi>.
        </p>
      )}
    </Panel>
  );
}

/** Returns the explanations that were made for one example. */
export function madeIn(asked: Exchange, row: number): ExplanationProps[] {
  const made = asked.reply.attributions.filter(({ message }) => !message.error);
  return made.map((attribution) => ({ asked, row, attribution }));
}

/** Returns what an explanation is called: its method, and its layer; numbered, if it is not the first one of them. */
export function nameOf({ asked, attribution: own }: ExplanationProps): string {
  const alike = asked.reply.attributions.filter(({ method, layer }) => method === own.method && layer === own.layer);
  const number = alike.indexOf(own) ? ` (${alike.indexOf(own) + 1})` : "";
  return `${own.method}${own.layer && ` of ${own.layer}`}${number}`;
}

/** Compares two; where only one of them has signs, their magnitudes. */
function pairOf(one: ExplanationProps, other: ExplanationProps): Pair | undefined {
  const [left, right] = [one, other].map(joined) as [Float64Array, Float64Array];
  if (shapesOf(one) !== shapesOf(other) || left.length < 2) return undefined;
  const [isLeft, isRight] = [left, right].map((values) => values.some((value) => value < 0));
  if (isLeft === isRight) return { one, other, ...agreementOf(left, right) };
  return { one, other, unsigned: isLeft ? other : one, ...agreementOf(left.map(Math.abs), right.map(Math.abs)) };
}

function joined({ asked, row, attribution }: ExplanationProps): Float64Array {
  const parts = Object.values(attribution.values).map((tensor) => exampleOf(asked, tensor, row).values);
  return Float64Array.from(parts.flatMap((values) => Array.from(values)));
}

/** What two explanations must have in common to be compared: places, and whether they are about the target or a neuron. */
function shapesOf({ asked, row, attribution: { method, layer, values } }: ExplanationProps): string {
  const neuron = method.startsWith("Neuron") ? layer : "";
  const shapes = Object.entries(values).map(([name, tensor]) => [name, exampleOf(asked, tensor, row).shape]);
  return JSON.stringify([neuron, shapes]);
}
