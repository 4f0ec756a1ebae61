/** One place inside a model: what it is, and what can be done there. */

import { HookPoint } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { Facts } from "../app/parts.js";
import { MethodMenu } from "../ask/MethodFields.js";
import { METHODS, requestFor } from "../ask/methods.js";
import { alter, ask, draft, model } from "../state/asking.js";
import { messageOf } from "../state/draft.js";
import { go } from "../state/route.js";
import { shapeText } from "../pictures/text.js";
import { parameterAt, requestAt } from "./places.js";
import type { Row } from "./tree.js";

const LAYER_METHODS = METHODS.filter(({ of, options }) => of === "a layer" && options[0]?.kind === "layer");

/** Returns the name of the view that shows these points. */
function viewOf(points: readonly HookPoint[]): string {
  return points.includes(HookPoint.OUTPUT) ? "activations" : "gradients";
}

/** Shows a place, and adds it to the question. */
export function PlaceDetails({ row }: { row: Row | undefined }): preact.JSX.Element | null {
  if (row === undefined) return null;
  const points = messageOf(draft.value)
    .captures.filter((each) => each.where.value === row.address)
    .flatMap((each) => (each.points.length ? each.points : [HookPoint.OUTPUT]));
  const all = `${row.address}.**`;
  const hasAll = messageOf(draft.value).captures.some(({ where }) => where.value === all);
  const capture = (added: CaptureRequest): void => alter({ captures: [...(draft.value.captures ?? []), added] });
  const explain = (field: string): void => {
    const added = requestFor(field, model.value ?? { inputs: [] }, row.address);
    alter({ attributions: [...(draft.value.attributions ?? []), added] });
    go("ask");
  };
  const facts: [string, string][] = [
    ["Type", row.type],
    ["Output", row.shapes.map(shapeText).join(", ") || "not known"],
    ["Parameters", row.parameters.toLocaleString("en")],
    ["Calls", `${row.calls}`],
    ...row.aliases.map((alias): [string, string] => ["Also named", alias]),
  ];
  return (
    <section class="panel" aria-labelledby="place">
      <h2 id="place">
        <bdi class="mono">{row.address || row.name}</bdi>
      </h2>
      <Facts facts={facts} />
      {row.address !== "" && (
        <div class="actions">
          {[HookPoint.OUTPUT, HookPoint.GRAD_OUTPUT].map((point) => (
            <button
              key={point}
              disabled={points.includes(point)}
              onClick={() => capture(requestAt(row.address, point))}
            >
              {points.includes(point) ? "Captured: " : "Capture the "}
              {point === HookPoint.OUTPUT ? "output" : "gradient"}
            </button>
          ))}
          {row.kind === "module" && row.parameters > 0 && (
            <button disabled={hasAll} onClick={() => capture(parameterAt(all))}>
              {hasAll ? "Captured: " : "Capture the "}gradients of its parameters
            </button>
          )}
          {row.kind === "module" && (
            <MethodMenu label="Explain by this layer" methods={LAYER_METHODS} onChoose={explain} />
          )}
          {(points.length > 0 || hasAll) && (
            <button class="quiet" onClick={() => void ask().then((answer) => answer && go(viewOf(points)))}>
              Ask, and show it
            </button>
          )}
        </div>
      )}
    </section>
  );
}
