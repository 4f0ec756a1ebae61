/** Attacks: which small change of the inputs changes the prediction, and what else it changes. */

import { byName } from "@cutaway/client";
import type { Attack } from "@cutaway/contract/attack_pb";
import { useState } from "preact/hooks";
import { Checks } from "../explanations/Explanation.js";
import { isImage, pictureOf } from "../explanations/Values.js";
import { Canvas } from "../pictures/Picture.js";
import { alter, exampleOf, tensorsIn, type ViewProps } from "../state/index.js";
import { Button, Check, Choice, comparedIn, FactLine, Form, NumberField, Table } from "../ui/index.js";
import { BeforeAfter } from "./BeforeAfter.js";

const KINDS = { fgsm: "One step (FGSM)", pgd: "Many steps (PGD)" } as const;
const TRIED = 20;

/** Asks for an attack on the inputs of the question, and shows what came of it. */
export function Attacking({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const [kind, setKind] = useState<keyof typeof KINDS>("fgsm");
  const [size, setSize] = useState(0.03);
  const [finds, setFinds] = useState(false);
  const attack = (): void => {
    const parameter = kind === "fgsm" ? "epsilon" : "radius";
    const search = finds ? { search: { parameter, upper: size, step: size / TRIED } } : {};
    const steps = { radius: size, stepSize: size / 4 };
    const one = kind === "fgsm" ? { case: kind, value: { epsilon: size } } : { case: kind, value: steps };
    alter({ attacks: [{ attack: one, ...search }], generate: undefined });
    ask({});
  };
  return (
    <>
      <Form onDone={attack}>
        <Choice label="Attack" of={["fgsm", "pgd"]} names={KINDS} value={kind} onChoose={setKind} />
        <NumberField label="Largest change" value={size} least={0} onChange={(each = 0) => setSize(each)} />
        <Check label="Find the least one" checked={finds} onCheck={setFinds} />
        <Button text="Attack" type="submit" />
      </Form>
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
  const rows = attack.attributions.map((each) => [
    each.attribution?.method,
    each.cosine[row],
    each.rankCorrelation[row],
  ]);
  const tensors = Object.entries(byName(attack.inputs)).flatMap(([name, now]) =>
    Object.entries({ [`${name} before`]: given[name], [`${name} now`]: now }),
  );
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
      {tensors.map(([label, tensor]) => {
        const part = tensor && exampleOf(asked, tensor, row);
        if (!part || !isImage(part)) return null;
        return (
          <figure key={label} class="attacked">
            <figcaption class="muted small">{label}</figcaption>
            <Canvas {...pictureOf(part)} role="img" aria-label={label} />
          </figure>
        );
      })}
      <BeforeAfter tried={{ before: asked.reply.predictions, after: byName(attack.predictions) }} {...{ asked, row }} />
      {attack.attributions.length > 0 && (
        <Table heads={["Explanation", "Cosine with the one before", "Rank correlation"]} rows={rows} />
      )}
      <Checks compared={comparedIn({ checks: attack.checks }, row)} />
    </>
  );
}
