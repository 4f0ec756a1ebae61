/** How far explanations of the same thing agree with each other. */

import { Heads, Panel } from "../app/parts.js";
import type { Attribution } from "@cutaway/client";
import { type Agreement, agreementOf } from "../measures/agreement.js";
import { type Asked, exampleOf, type ViewProps } from "../state/asked.js";
import { short } from "../pictures/text.js";

/** Two explanations; magnitudes are compared where one of them, `unsigned`, has no signs. */
type Pair = Agreement & Readonly<{ one: Attribution; other: Attribution; unsigned?: Attribution }>;

/** What a cosine says, from which on. */
const WORDS = [
  [0.9, "much the same"],
  [0.5, "alike in part"],
  [0.1, "hardly alike"],
  [-0.1, "nothing in common"],
  [-1.1, "opposed"],
] as const;

/** Shows each pair of explanations with the same names and shapes, and names the others; nothing for one alone. */
export function AgreementTable({ asked, row }: Pick<ViewProps, "asked" | "row">): preact.JSX.Element | null {
  const made = asked.reply.attributions.filter(({ message }) => !message.error);
  const pairs = made.flatMap((one, at) => made.slice(at + 1).flatMap((other) => pairOf(asked, one, other, row) ?? []));
  const alone = made.filter((each) => !pairs.some(({ one, other }) => one === each || other === each));
  if (made.length < 2) return null;
  return (
    <Panel id="agreement" title="Do the methods agree?">
      <div class="wide">
        <table class="agreement">
          <Heads of={["Methods", "Cosine", "Rank correlation", "Largest tenth in common", "In words"]} />
          <tbody>
            {pairs.map(({ one, other, cosine, ranks, top, unsigned }, index) => (
              <tr key={index}>
                <th scope="row">
                  {nameOf(one)} and {nameOf(other)}
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
          Not compared, because no other method explains the same places: <bdi>{alone.map(nameOf).join(", ")}</bdi>.
        </p>
      )}
    </Panel>
  );
}

function nameOf({ method, layer }: Attribution): string {
  return layer ? `${method} of ${layer}` : method;
}

/** Compares two; where only one of them has signs, their magnitudes. */
function pairOf(asked: Asked, one: Attribution, other: Attribution, row: number): Pair | undefined {
  const [left, right] = [one, other].map((each) => joined(asked, each, row)) as [Float64Array, Float64Array];
  if (shapesOf(one) !== shapesOf(other) || left.length < 2) return undefined;
  const [isLeft, isRight] = [left, right].map((values) => values.some((value) => value < 0));
  if (isLeft === isRight) return { one, other, ...agreementOf(left, right) };
  return { one, other, unsigned: isLeft ? other : one, ...agreementOf(left.map(Math.abs), right.map(Math.abs)) };
}

function joined(asked: Asked, { values }: Attribution, row: number): Float64Array {
  return Float64Array.from(Object.values(values).flatMap((tensor) => Array.from(exampleOf(asked, tensor, row).values)));
}

/** What two explanations must have in common to be compared: places, and whether they are about the target or a neuron. */
function shapesOf({ method, layer, values }: Attribution): string {
  const neuron = method.startsWith("Neuron") ? layer : "";
  return JSON.stringify([neuron, Object.entries(values).map(([name, { shape }]) => [name, shape])]);
}
