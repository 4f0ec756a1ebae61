/** An explanation beside its reference from raw hooks: both maps, the difference, and whether it matters. */

import { byName, tensor, type Tensor, Verdict } from "@cutaway/client";
import { type Difference, differenceOf, flattened, layoutOf, numbersOf } from "../measures/index.js";
import { ask, asked as last, askedParts, draft, exampleOf } from "../state/index.js";
import { Button, comparedIn, short, verdictOn } from "../ui/index.js";
import { byToken, type ExplanationProps, Values } from "./Values.js";

/** Shows the values of an explanation; beside them their reference and the difference, where the answer has it. */
export function WithReference(own: ExplanationProps): preact.JSX.Element {
  const { asked, row, attribution } = own;
  const references = byName(attribution.message.references);
  const verdict = verdictOn(attribution, row);
  const checked = verdict !== Verdict.UNSPECIFIED && verdict !== Verdict.NOT_APPLICABLE;
  if (Object.keys(references).length === 0) {
    const known = askedParts(asked.question).check?.references;
    const text = verdict === Verdict.AGREES ? "Beside its reference" : "Does it matter? Beside its reference";
    const askFor = (): void => void ask({ check: { ...askedParts(draft.value).check, references: true } });
    return (
      <>
        <Values {...own} />
        {known && <p class="muted small">The raw hooks saw too little to compute a reference.</p>}
        {!known && checked && asked === last.value && <Button {...{ text }} class="quiet small" onClick={askFor} />}
      </>
    );
  }
  const differences = Object.entries(references).map(([name, { data, shape }]) => {
    const values = numbersOf(attribution.values[name] ?? NONE);
    const difference = Float64Array.from(values, (value, at) => value - Number(data[at]));
    return [name, tensor(difference, shape)] as const;
  });
  const sides = {
    "By Captum": attribution.values,
    "By the raw hooks": references,
    Difference: Object.fromEntries(differences),
  };
  return (
    <>
      <p class={verdict === Verdict.DISAGREES ? "bad" : ""}>{differenceIn(own, references)}</p>
      <div class="sides">
        {Object.entries(sides).map(([title, others]) => (
          <section key={title} aria-label={title}>
            <h3>{title}</h3>
            <Values {...{ ...own, others }} />
          </section>
        ))}
      </div>
    </>
  );
}

const NONE = tensor(new Float64Array(), [0]);

/** Returns what differs between an explanation of one example and its reference, in words. */
function differenceIn({ asked, row, attribution }: ExplanationProps, references: Record<string, Tensor>): string {
  const tokens = attribution.message.tokens?.texts[row]?.tokens.length ?? 0;
  const isImage = ({ shape }: Tensor): boolean => layoutOf(shape.slice(1)).kind === "planes";
  const joined = (of: Readonly<Record<string, Tensor>>): number[] =>
    Object.keys(references).flatMap((name) => {
      const part = exampleOf(asked, of[name] ?? NONE, row);
      return Array.from(tokens ? byToken(part, tokens) : (isImage(of[name] ?? NONE) ? flattened(part) : part).values);
    });
  const [check] = comparedIn(attribution, row);
  const words = tokens ? "tokens" : Object.values(references).every(isImage) ? "pixels" : "elements";
  const difference = differenceOf(joined(attribution.values), joined(references), check?.check.tolerance);
  return differenceText(difference, words, check?.verdict);
}

/** A difference below this share of the largest value is little, where the same elements are the largest. */
const LITTLE = 0.1;

/** Returns a difference in words; of one that is too large, whether it matters. */
export function differenceText(
  { count, others, turned, largest }: Difference,
  words: string,
  verdict?: Verdict,
): string {
  if (!Number.isFinite(largest)) return "One of the two is not finite, and cannot be compared.";
  if (largest === 0) return "The two are equal.";
  const same = others + turned === 0;
  const matters = same && largest < LITTLE ? "It matters little: " : "It matters: ";
  const what = `the largest tenth of all ${words} is ${same ? "the same" : "another one"}`;
  const how = others ? `, ${others} of ${count}` : "";
  const signs = turned ? `, with the other sign at ${turned} of ${count}` : "";
  const text = `${verdict === Verdict.DISAGREES ? matters : ""}${what}${how}${signs}; values differ by at most ${short(100 * largest, 2)} % of the largest.`;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
