/** Concepts: does the target grow as a layer moves towards what some examples have in common? */

import type { Question } from "@cutaway/client";
import { extent, mean } from "d3-array";
import { Asking } from "../ask/Asking.js";
import { Checks } from "../explanations/Explanation.js";
import { leavesOf, spread } from "../models/places.js";
import { Bars } from "../pictures/Bars.js";
import { askedParts, type ViewProps } from "../state/index.js";
import { percent, Select, short, Table, TextField, useFields, VerdictBadge } from "../ui/index.js";

const LEAST_SETS = 3;
const MOST_LAYERS = 3;
/** The p-value up to which a score is no chance, and how many random sets it needs. */
const [SIGNIFICANT, NEEDED] = [0.05, 19];

/** Asks for a test with the packaged data sets of the model, and shows what came of it. */
export function Concepts({ asked, row }: ViewProps): preact.JSX.Element {
  const sets = asked.model.dataSets.map(({ name }) => name);
  const leaves = leavesOf(asked.model).map(({ name }) => name);
  const { concepts: linked } = askedParts(asked.question);
  const [{ concept, layers }, field] = useFields({
    concept: Object.values(linked?.concepts ?? {})[0]?.dataSet || (sets[0] ?? ""),
    layers: (linked?.layers ?? spread(leaves.slice(0, Math.max(1, leaves.length - 1)), MOST_LAYERS)).join(", "),
  });
  const random = sets.filter((name) => name !== concept);
  const parts = (): Partial<Question> => ({
    concepts: {
      layers: layers.split(/[\s,]+/).filter(Boolean),
      concepts: { [concept]: { dataSet: concept } },
      random: random.map((dataSet) => ({ dataSet })),
    },
  });
  if (sets.length < LEAST_SETS)
    return (
      <p class="muted">
        It takes a data set of the concept and two or more random ones, packaged with the model:{" "}
        <code>cutaway package --data-set NAME=FILE</code>. This model has {sets.length}.
      </p>
    );
  return (
    <>
      <Asking {...{ asked }} label="Test the concept" parts={parts} costly>
        <Select label="Concept" of={sets} {...field("concept")} />
        <TextField label="Layers" class="mono" required {...field("layers")} />
        <span class="muted small">Random sets: {random.join(", ")}</span>
      </Asking>
      <Scores {...{ asked, row }} />
    </>
  );
}

/** Shows the score of the concept at each layer, beside those of random sets in its place. */
function Scores({ asked, row }: ViewProps): preact.JSX.Element | null {
  const found = asked.reply.message.concepts;
  const bars = found.map(({ layer, concept, shares, pValue }) => {
    const about = `p = ${short(pValue)}: ${pValue <= SIGNIFICANT ? "no chance" : "may be chance"}`;
    return { name: `${layer} ${concept}`, value: mean(shares) ?? NaN, about };
  });
  const rows = found.map(({ layer, concept, check, randomShares, accuracies, magnitudes }) => [
    <bdi class="mono">{`${layer} ${concept}`}</bdi>,
    check && <VerdictBadge verdict={check.verdict} brief />,
    extent(randomShares)
      .map((share = NaN) => percent(share))
      .join(" to "),
    percent(mean(accuracies) ?? NaN),
    mean(magnitudes),
  ]);
  const doubts = found.flatMap(({ check }) => (check?.reason ? [check] : []));
  if (found.length === 0) return null;
  return (
    <>
      <p>In how many of the examples the target grows towards the concept:</p>
      <Bars bars={bars} lengthOf={(share) => share} textOf={percent} />
      <Table heads={["Layer", "Verdict", "Random sets", "Classifier is right", "Mean derivative"]} rows={rows} />
      {doubts.length > 0 && <Checks checks={doubts} row={row} />}
      <p class="muted small">
        Where the classifier is right in 50 %, the layer does not show the concept.
        {(found[0]?.randomShares.length ?? 0) < NEEDED && ` A p-value of 5 % needs ${NEEDED} random sets.`}
      </p>
    </>
  );
}
