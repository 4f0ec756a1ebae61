/** Attacks: which small change of the inputs changes the prediction, and what else it changes. */

import { byName } from "@cutaway/client";
import type { Attack } from "@cutaway/contract/attack_pb";
import { useState } from "preact/hooks";
import { Checks } from "../explanations/Explanation.js";
import { isImage, pictureOf } from "../explanations/Values.js";
import { Canvas } from "../pictures/Canvas.js";
import { alter } from "../state/asking.js";
import { tensorsIn } from "../state/draft.js";
import { exampleOf, type ViewProps } from "../state/exchange.js";
import { Button, Check, Choice, NumberField } from "../ui/controls.js";
import { FactLine, Table } from "../ui/parts.js";
import { comparedIn } from "../ui/verdicts.js";
import { BeforeAfter } from "./BeforeAfter.js";

const KINDS = { fgsm: "One step (FGSM)", pgd: "Many steps (PGD)" } as const;
const TRIED = 20;

/** Asks for an attack on the inputs of the question, and shows what came of it. */
export function Attacking({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const [kind, setKind] = useState<keyof typeof KINDS>("fgsm");
  const [size, setSize] = useState(0.03);
  const [finds, setFinds] = useState(false);
  const attack = (event: SubmitEvent): void => {
    event.preventDefault();
    const parameter = kind === "fgsm" ? "epsilon" : "radius";
    const search = finds ? { search: { parameter, upper: size, step: size / TRIED } } : {};
    const steps = { radius: size, stepSize: size / 4 };
    const one = kind === "fgsm" ? { case: kind, value: { epsilon: size } } : { case: kind, value: steps };
    alter({ attacks: [{ attack: one, ...search }], generate: undefined });
    ask({});
  };
  return (
    <>
      <form class="tools" onSubmit={attack}>
        <Choice label="Attack" of={["fgsm", "pgd"]} names={KINDS} value={kind} onChoose={setKind} />
        <NumberField label="Largest change" value={size} least={0} onChange={(each = 0) => setSize(each)} />
        <Check label="Find the least one" checked={finds} onCheck={setFinds} />
        <Button text="Attack" type="submit" />
      </form>
      {asked.reply.message.attacks.map((one, index) => (
        <Attacked key={index} {...{ asked, row }} attack={one} />
      ))}
    </>
  );
}

type AttackedProps = Readonly<Pick<ViewProps, "asked" | "row"> & { attack: Attack }>;

/** Shows what one attack changed of one example. */
function Attacked({ asked, row, attack }: AttackedProps): preact.JSX.Element {
  const least = attack.parameters[row];
  const given = tensorsIn(asked.question);
  return (
    <>
      {attack.succeeded.length > 0 && <p>{attack.succeeded[row] ? "It reached its aim." : "It missed its aim."}</p>}
      <FactLine
        facts={[
          ["loss before", attack.lossesBefore[row]],
          ["loss now", attack.losses[row]],
          ["largest change", attack.linf[row]],
          ["least that does", Number.isNaN(least) ? undefined : least],
        ]}
      />
      {Object.entries(byName(attack.inputs)).map(([name, now]) => {
        const parts = [["before", given[name]] as const, ["now", now] as const].flatMap(([when, tensor]) => {
          const part = tensor && exampleOf(asked, tensor, row);
          return part && isImage(part) ? [[`${name} ${when}`, pictureOf(part)] as const] : [];
        });
        return parts.map(([label, picture]) => (
          <figure key={label} class="attacked">
            <figcaption class="muted small">{label}</figcaption>
            <Canvas {...picture} role="img" aria-label={label} />
          </figure>
        ));
      })}
      <BeforeAfter tried={{ before: asked.reply.predictions, after: byName(attack.predictions) }} {...{ asked, row }} />
      {attack.attributions.length > 0 && (
        <Table
          heads={["Explanation", "Cosine with the one before", "Rank correlation"]}
          rows={attack.attributions.map(({ attribution, cosine, rankCorrelation }) => [
            attribution?.method,
            cosine[row],
            rankCorrelation[row],
          ])}
        />
      )}
      <Checks compared={comparedIn({ checks: attack.checks }, row)} />
    </>
  );
}
