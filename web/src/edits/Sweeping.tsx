/** A grid of patches: at which place of which module is what the answer depends on? */

import { create } from "@bufbuild/protobuf";
import { fromMessage, HookPoint } from "@cutaway/client";
import { SweepSchema } from "@cutaway/contract/inspection_pb";
import { useMemo, useState } from "preact/hooks";
import { tokensOf } from "../activations/places.js";
import { writes } from "../ask/ways.js";
import { type Numbers, partOf } from "../measures/index.js";
import { blocksOf, capturing, requestAt } from "../models/places.js";
import { HeatMap } from "../pictures/Picture.js";
import { alter, askedParts, draft, type Exchange, rowsOf, targetText, type ViewProps } from "../state/index.js";
import { Button, Check, Choice, Form, NumberField, Select, short, TextField } from "../ui/index.js";

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
  const sources = Array.from({ length: rows }, (_, each) => [each, `what example ${each + 1} has`] as const);
  const sweep = (): void => {
    const patches = source === ZEROS ? { zeros: true } : { source };
    alter({ sweep: create(SweepSchema, { module: module.trim(), axis, estimate, ...patches }), generate: undefined });
    ask(writes(asked.model) ? capturing(draft.value, requestAt("", HookPoint.INPUT)) : {}); // the tokens of the places
  };
  return (
    <>
      <Form onDone={sweep}>
        <TextField label="Modules" class="mono" list="places" required value={module} onText={setModule} />
        <NumberField label="Axis of the places" value={axis} least={1} whole onChange={(each = 1) => setAxis(each)} />
        <Select
          label="Put there"
          of={[...(rows > 1 ? sources : []), [ZEROS, "zeros"]]}
          value={source}
          onChoose={setSource}
        />
        <Check label="Estimates too" checked={estimate} onCheck={setEstimate} />
        <Button text="Sweep" type="submit" />
      </Form>
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

/** Modules with as many places as each other; values are row by row, a row for each module. */
export type Grid = Readonly<{ modules: readonly string[]; places: readonly string[]; values: Float64Array }>;

/** Returns the effect of each patch on the target of an example, or its estimate: the target with it, less the target. */
export function gridsOf(asked: Exchange, row: number, estimated: boolean): Grid[] {
  const { sweep, sweepEstimates, predictions } = asked.reply.message;
  const target = predictions?.targetValues[row] ?? Number.NaN;
  const effects = (estimated ? sweepEstimates : sweep).flatMap(({ name, tensor }): [string, Numbers][] =>
    tensor ? [[name, partOf(fromMessage(tensor), row, rowsOf(asked)).values]] : [],
  );
  const lengths = new Set(effects.map(([, { length }]) => length));
  return [...lengths].map((length) => {
    const rows = effects.filter(([, values]) => values.length === length);
    const values = Float64Array.from(rows.flatMap(([, each]) => Array.from(each, (value) => value - target)));
    return { modules: rows.map(([name]) => name), places: placesOf(asked, row, length), values };
  });
}

/** Returns what the places are called: the tokens of the example, if they are along their axis, or their indices. */
function placesOf(asked: Exchange, row: number, count: number): string[] {
  const { axis = 1, places = [] } = askedParts(asked.question).sweep ?? {};
  const tokens = axis === 1 ? tokensOf(asked, row) : [];
  return Array.from({ length: count }, (_, at) => {
    const place = Number(places[at] ?? at);
    const isToken = places.length > 0 || tokens.length === count;
    return (isToken ? tokens.at(place) : undefined) ?? `${place}`;
  });
}
