/** A grid of patches: at which place of which module is what the answer depends on? */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { fromMessage, HookPoint, type Question } from "@cutaway/client";
import { SweepSchema } from "@cutaway/contract/inspection_pb";
import { group } from "d3-array";
import { useMemo, useState } from "preact/hooks";
import { type CapturedProps, tokensOf } from "../activations/places.js";
import { Asking } from "../ask/Asking.js";
import { writes } from "../ask/ways.js";
import { partOf } from "../measures/index.js";
import { blocksOf, capturing, requestAt, whereIs } from "../models/places.js";
import { Bars, type Named } from "../pictures/Bars.js";
import { HeatMap } from "../pictures/Picture.js";
import { ask, askedParts, draft, type Exchange, rowsOf, targetText, type ViewProps } from "../state/index.js";
import { Button, Check, Choice, NumberField, Select, short, TextField, useFields } from "../ui/index.js";

const ZEROS = -1;

/** Returns the question's part that asks for a sweep. */
function sweeping(sweep: MessageInitShape<typeof SweepSchema>): Partial<Question> {
  return { sweep: create(SweepSchema, sweep) };
}

/** Asks for a sweep of the modules that a person names, and shows what came of it. */
export function Sweeping({ asked, row }: ViewProps): preact.JSX.Element {
  const rows = rowsOf(asked);
  const [{ module, axis, estimate, chosen }, field] = useFields({
    module: (blocksOf(asked.model)[0] ?? "").replace(/\d+$/, "*"),
    axis: 1,
    estimate: false,
    chosen: undefined as number | undefined,
  });
  const usual = rows > 1 ? Number(row === 0) : ZEROS;
  const source = chosen !== undefined && chosen < rows ? chosen : usual;
  const sources = Array.from({ length: rows }, (_, each) => [each, `what example ${each + 1} has`] as const);
  const parts = (): Partial<Question> => ({
    ...sweeping({ module: module.trim(), axis, estimate, ...(source === ZEROS ? { zeros: true } : { source }) }),
    ...(writes(asked.model) && capturing(draft.value, requestAt("", HookPoint.INPUT))), // the tokens of the places
  });
  return (
    <>
      <Asking {...{ asked }} label="Sweep" parts={parts}>
        <TextField label="Modules" class="mono" list="places" required {...field("module")} />
        <NumberField label="Axis of the places" least={1} whole {...field("axis")} />
        <Select
          label="Put there"
          of={[...(rows > 1 ? sources : []), [ZEROS, "zeros"]]}
          value={source}
          onChange={field("chosen").onChange}
        />
        <Check label="Estimates too" {...field("estimate")} />
      </Asking>
      <Effects {...{ asked, row }} />
    </>
  );
}

const KINDS = { exact: "Exact", estimated: "Estimated" } as const;

/** Shows the effect of each patch on the target of one example. */
function Effects({ asked, row }: ViewProps): preact.JSX.Element | null {
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
          <Choice label="Effects" of={KINDS} value={kind} onChange={setKind} />
          <span class="small">{`Cosine between the two: ${short(sweepAgreement[row] ?? NaN)}`}</span>
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
  const target = predictions?.targetValues[row] ?? NaN;
  const effects = (estimated ? sweepEstimates : sweep).flatMap(({ name, tensor }) =>
    tensor ? [{ name, values: partOf(fromMessage(tensor), row, rowsOf(asked)).values }] : [],
  );
  return [...group(effects, ({ values }) => values.length)].map(([length, rows]) => {
    const values = Float64Array.from(rows.flatMap(({ values }) => Array.from(values, (value) => value - target)));
    return { modules: rows.map(({ name }) => name), places: placesOf(asked, row, length), values };
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

const MOST = 16;

/**
 * What the target loses without each part along the first axis of a module’s output: measured, all in one call, beside the
 * first-order estimates.
 */
export function Measured({ asked, row, captured, axes }: CapturedProps): preact.JSX.Element | null {
  const [part = "part"] = axes;
  const { module, path, calls } = captured;
  const { zeros, axis = 1, path: swept = "" } = askedParts(asked.question).sweep ?? {};
  const effectsOf = (estimated: boolean): Named[] => {
    const all = zeros && axis === 1 && swept === path ? gridsOf(asked, row, estimated) : [];
    const { modules = [], places = [], values } = all.find((each) => each.modules.includes(module)) ?? {};
    const first = modules.indexOf(module) * places.length;
    const nameOf = (place: string): string => (/^\d+$/.test(place) ? `${part} ${place}` : place);
    return places.map((place, at) => ({ name: nameOf(place), value: -(values?.[first + at] ?? NaN) }));
  };
  const measure = (): void =>
    void ask({
      ...sweeping({ module: module || ".", axis: 1, zeros: true, estimate: true, path }),
      generate: undefined,
    });
  if (calls > 1 || whereIs(module).case === "op") return null; // a sweep is of a module called once
  const [exact, estimated] = [effectsOf(false), effectsOf(true)];
  if (exact.length === 0) return <Button text={`What happens without each ${part}?`} onClick={measure} />;
  const bars = exact
    .map((bar, at) => ({ ...bar, about: `estimated ${short(estimated[at]?.value ?? NaN)}` }))
    .sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
  return (
    <section class="measured" aria-label="Measured effects">
      <h3>Without each {part}</h3>
      <p class="muted small">
        What {targetText(asked, row)} loses if one {part} alone is zero, measured; below each name its first-order
        estimate. Cosine between the two: {short(asked.reply.message.sweepAgreement[row] ?? NaN)}.
        {bars.length > MOST && ` The ${MOST} largest of ${bars.length}.`}
      </p>
      <Bars bars={bars.slice(0, MOST)} />
    </section>
  );
}
