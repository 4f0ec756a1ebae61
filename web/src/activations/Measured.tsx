/** What the target loses without each channel, position or unit of an output: measured, beside the first-order estimate. */

import { create } from "@bufbuild/protobuf";
import { SweepSchema } from "@cutaway/contract/inspection_pb";
import { Bars, type Named } from "../pictures/Bars.js";
import { gridsOf } from "../edits/Sweeping.js";
import { alter, ask, askedParts, targetText } from "../state/index.js";
import { Button, short } from "../ui/index.js";
import type { CapturedProps } from "./places.js";
import { whereIs } from "../models/places.js";

const MOST = 16;

/** Has each part along the first axis of a module’s output set to zero, all in one call, and shows what came of it. */
export function Measured({ asked, row, captured, axes }: CapturedProps): preact.JSX.Element | null {
  const [part = "part"] = axes;
  const { zeros, axis = 1, path = "" } = askedParts(asked.question).sweep ?? {};
  const gridOf = (estimated: boolean): Named[] => {
    const all = zeros && axis === 1 && path === captured.path ? gridsOf(asked, row, estimated) : [];
    const { modules = [], places = [], values } = all.find((each) => each.modules.includes(captured.module)) ?? {};
    const first = modules.indexOf(captured.module) * places.length;
    return places.map((place, at) => {
      return { name: /^\d+$/.test(place) ? `${part} ${place}` : place, value: -(values?.[first + at] ?? NaN) };
    });
  };
  const measure = (): void => {
    const { module, path } = captured;
    const sweep = create(SweepSchema, { module: module || ".", axis: 1, zeros: true, estimate: true, path });
    alter({ sweep, generate: undefined });
    void ask();
  };
  if (captured.calls > 1 || whereIs(captured.module).case === "op") return null; // a sweep is of a module called once
  const [exact, estimated] = [gridOf(false), gridOf(true)];
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
