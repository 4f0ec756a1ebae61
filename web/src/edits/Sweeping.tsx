/** A grid of patches: at which place of which module is what the answer depends on? */

import { create } from "@bufbuild/protobuf";
import { HookPoint } from "@cutaway/client";
import { SweepSchema } from "@cutaway/contract/inspection_pb";
import { useMemo, useState } from "preact/hooks";
import { writes } from "../ask/ways.js";
import { blocksOf, capturing, requestAt } from "../models/places.js";
import { HeatMap } from "../pictures/Picture.js";
import { alter, draft } from "../state/asking.js";
import { askedParts } from "../state/draft.js";
import { rowsOf, targetText, type ViewProps } from "../state/exchange.js";
import { Button, Check, Choice, NumberField, Select, TextField } from "../ui/controls.js";
import { short } from "../ui/text.js";
import { gridsOf } from "./sweep.js";

const ZEROS = -1;

/** Asks for a sweep of the modules that a person names, and shows what came of it. */
export function Sweeping({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const rows = rowsOf(asked);
  const [module, setModule] = useState(() => (blocksOf(asked.model)[0] ?? "").replace(/\d+$/, "*"));
  const [axis, setAxis] = useState(1);
  const [chosen, setSource] = useState<number | undefined>(undefined);
  const [estimate, setEstimate] = useState(false);
  const usual = rows > 1 ? Number(row === 0) : ZEROS;
  const source = chosen !== undefined && chosen < rows ? chosen : usual;
  const sources = Array.from(
    { length: rows > 1 ? rows : 0 },
    (_, each) => [each, `what example ${each + 1} has`] as const,
  );
  const sweep = (event: SubmitEvent): void => {
    event.preventDefault();
    const patches = source === ZEROS ? { zeros: true } : { source };
    alter({ sweep: create(SweepSchema, { module: module.trim(), axis, estimate, ...patches }), generate: undefined });
    ask(writes(asked.model) ? capturing(draft.value, requestAt("", HookPoint.INPUT)) : {}); // the tokens of the places
  };
  return (
    <>
      <form class="tools" onSubmit={sweep}>
        <TextField label="Modules" class="mono" list="places" required value={module} onText={setModule} />
        <NumberField label="Axis of the places" value={axis} least={1} whole onChange={(each = 1) => setAxis(each)} />
        <Select label="Put there" of={[...sources, [ZEROS, "zeros"]]} value={source} onChoose={setSource} />
        <Check label="Estimates too" checked={estimate} onCheck={setEstimate} />
        <Button text="Sweep" type="submit" />
      </form>
      <Effects {...{ asked, row }} />
    </>
  );
}

const KINDS = { exact: "Exact", estimated: "Estimated" } as const;

/** Shows the effect of each patch on the target of one example. */
function Effects({ asked, row }: Pick<ViewProps, "asked" | "row">): preact.JSX.Element | null {
  const [kind, setKind] = useState<keyof typeof KINDS>("exact");
  const { sweep, sweepEstimates, sweepAgreement } = asked.reply.message;
  const hasBoth = sweepEstimates.length > 0;
  const estimated = hasBoth && kind === "estimated";
  const grids = useMemo(() => gridsOf(asked, row, estimated), [asked, row, estimated]);
  const { zeros = false, source = 0 } = askedParts(asked.question).sweep ?? {};
  if (sweep.length === 0) return null;
  return (
    <>
      <p class="muted small">
        By how much {targetText(asked, row)} changes where{" "}
        {zeros ? "there are zeros" : `there is what example ${source + 1} has`}.
        {!zeros && source === row && " It is the example that is shown: choose another one above."}
      </p>
      {hasBoth && (
        <div class="tools">
          <Choice label="Effects" of={["exact", "estimated"]} names={KINDS} value={kind} onChoose={setKind} />
          <span class="small">{`Cosine between the two: ${short(sweepAgreement[row] ?? Number.NaN)}`}</span>
        </div>
      )}
      {grids.map(({ modules, places, values }) => (
        <HeatMap
          key={places.length}
          label="Effects on the target"
          {...{ values, width: places.length, signed: true, names: { rows: modules, columns: places } }}
          nameOf={(x, y) => `${modules[y] ?? ""}, ${places[x] ?? ""}`}
        />
      ))}
    </>
  );
}
