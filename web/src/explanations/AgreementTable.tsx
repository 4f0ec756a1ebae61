/** How far explanations of the same thing agree with each other. */

import { cosine } from "../measures/index.js";
import { type Exchange, exampleOf } from "../state/exchange.js";
import { Panel, short, Table } from "../ui/index.js";
import type { ExplanationProps } from "./Values.js";

/** Two explanations, and how far they agree; of two answers there is the cosine alone. */
type Pair = Readonly<{ sides: readonly ExplanationProps[]; cosine: number }> &
  Readonly<{ figures?: readonly preact.ComponentChildren[]; ofMagnitudes?: boolean }>;

/** What a cosine says, from which on. */
const WORDS = [
  [0.9, "much the same"],
  [0.5, "alike in part"],
  [0.1, "hardly alike"],
  [-0.1, "nothing in common"],
  [-1.1, "opposed"],
] as const;

type Props = Readonly<{ asked: Exchange; row: number; others: readonly ExplanationProps[] }>;

/**
 * Shows how far the explanations of an answer agree, as it says itself; or with those of another one, `others`, by the
 * same method. Names those that nothing is compared with.
 */
export function AgreementTable({ asked, row, others }: Props): preact.JSX.Element | null {
  const made = madeIn(asked, row);
  const pairs = others.length
    ? made.flatMap((one) =>
        others.filter((each) => nameOf(each) === nameOf(one)).flatMap((each) => pairOf(one, each) ?? []),
      )
    : pairsIn(asked, row);
  const isPaired = ({ attribution }: ExplanationProps): boolean =>
    pairs.some(({ sides }) => sides.some((each) => each.attribution === attribution));
  const alone = made.filter((each) => !isPaired(each));
  if (!asked.whole || made.length + others.length < 2 || !(others.length || asked.question.agreement)) return null;
  const figures = others.length ? [] : ["Rank correlation", "Largest tenth in common"];
  return (
    <Panel id="agreement" title={others.length ? "Do the two answers agree?" : "Do the methods agree?"}>
      <Table
        kind="agreement"
        heads={["Methods", "Cosine", ...figures, "In words"]}
        rows={pairs.map(({ sides, cosine, figures = [], ofMagnitudes }) => [
          <>
            {[...new Set(sides.map(nameOf))].join(" and ")}
            {ofMagnitudes && <p class="muted small">magnitudes: one of them has no signs</p>}
          </>,
          cosine,
          ...figures,
          WORDS.find(([least]) => cosine >= least)?.[1] ?? "cannot be compared: one is zero or not finite",
        ])}
      />
      {alone.length > 0 && (
        <p class="muted small">
          Not compared, because no other explanation is of the same places and target:{" "}
          <bdi>{alone.map(nameOf).join(", ")}</bdi>.
        </p>
      )}
    </Panel>
  );
}

/** Returns the pairs that an answer itself compares. */
function pairsIn(asked: Exchange, row: number): Pair[] {
  const { attributions, message } = asked.reply;
  return message.agreements.map(({ first, second, cosine, rankCorrelation, topInCommon, ofMagnitudes }) => {
    const pair = [attributions[first], attributions[second]];
    const sides = pair.flatMap((attribution) => (attribution ? [{ asked, row, attribution }] : []));
    const figures = [rankCorrelation[row], <div class="number">{short(100 * (topInCommon[row] ?? NaN), 2)} %</div>];
    return { sides, cosine: cosine[row] ?? NaN, figures, ofMagnitudes };
  });
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

/** Compares an explanation of one answer with that of another. */
function pairOf(one: ExplanationProps, other: ExplanationProps): Pair | undefined {
  const left = joined(one);
  if (shapesOf(one) !== shapesOf(other) || left.length < 2) return undefined;
  return { sides: [one, other], cosine: cosine(left, joined(other)) };
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
