/** Attacks: which small change of the inputs changes the prediction, and what else it changes. */

import type { Question } from "@cutaway/client";
import type { Attack } from "@cutaway/contract/attack_pb";
import { Asking } from "../ask/Asking.js";
import type { ViewProps } from "../state/index.js";
import { Check, Choice, NumberField, Table, useFields } from "../ui/index.js";
import { Changed } from "./BeforeAfter.js";

const KINDS = { fgsm: "One step (FGSM)", pgd: "Many steps (PGD)" } as const;
const TRIED = 20;

type Fields = Readonly<{ kind: keyof typeof KINDS; size: number; finds: boolean }>;

/** Asks for an attack on the inputs of the question, and shows what came of it. */
export function Attacking({ asked, row }: ViewProps): preact.JSX.Element {
  const [{ kind, size, finds }, field] = useFields<Fields>({ kind: "fgsm", size: 0.03, finds: false });
  const parts = (): Partial<Question> => {
    const parameter = kind === "fgsm" ? "epsilon" : "radius";
    const search = finds ? { search: { parameter, upper: size, step: size / TRIED } } : {};
    const steps = { radius: size, stepSize: size / 4 };
    const attack = kind === "fgsm" ? { case: kind, value: { epsilon: size } } : { case: kind, value: steps };
    return { attacks: [{ attack, ...search }] };
  };
  return (
    <>
      <Asking {...{ asked }} label="Attack" parts={parts}>
        <Choice label="Attack" of={KINDS} {...field("kind")} />
        <NumberField label="Largest change" least={0} {...field("size")} />
        <Check label="Find the least one" {...field("finds")} />
      </Asking>
      {asked.reply.message.attacks.map((one, index) => (
        <Attacked key={index} {...{ asked, row }} attack={one} />
      ))}
    </>
  );
}

type AttackedProps = Readonly<ViewProps & { attack: Attack }>;

/** Shows what one attack changed of one example. */
function Attacked({ asked, row, attack }: AttackedProps): preact.JSX.Element {
  const { succeeded, parameters, lossesBefore, losses, linf, attributions } = attack;
  const least = parameters[row];
  const aim = succeeded[row] ? "It reached its aim." : "It missed its aim.";
  const rows = attributions.map((each) => [each.attribution?.method, each.cosine[row], each.rankCorrelation[row]]);
  const facts = {
    "loss before": lossesBefore[row],
    "loss now": losses[row],
    "largest change": linf[row],
    "least that does": Number.isNaN(least) ? undefined : least,
  };
  return (
    <Changed {...{ asked, row }} said={succeeded.length > 0 ? aim : ""} facts={Object.entries(facts)} of={attack}>
      {rows.length > 0 && (
        <Table heads={["Explanation", "Cosine with the one before", "Rank correlation"]} rows={rows} />
      )}
    </Changed>
  );
}
