/** One place inside a model: what it is, and what can be done there. */

import { HookPoint } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { Button } from "../ui/controls.js";
import { Facts, Panel } from "../ui/parts.js";
import { MethodMenu } from "../ask/MethodFields.js";
import { METHODS, requestFor } from "../ask/methods.js";
import { tryAt } from "../edits/live.js";
import { alter, ask, asked, draft, model } from "../state/asking.js";
import { messageOf } from "../state/draft.js";
import { go } from "../state/route.js";
import { shapeText } from "../ui/text.js";
import { capturing, parameterAt, requestAt } from "./places.js";
import type { ModuleNode } from "./tree.js";

const { OUTPUT, GRAD_OUTPUT } = HookPoint;
const LAYER_METHODS = METHODS.filter(({ of, options }) => of === "a layer" && options[0]?.kind === "layer");

/** Shows a place, and adds it to the question. */
export function PlaceDetails({ row }: { row: ModuleNode | undefined }): preact.JSX.Element | null {
  if (row === undefined) return null;
  const { captures } = messageOf(draft.value);
  const points = captures
    .filter(({ where }) => where.value === (row.address || "."))
    .flatMap((each) => (each.points.length ? each.points : [OUTPUT]));
  const all = row.address ? `${row.address}.**` : "**";
  const hasAll = captures.some(({ where }) => where.value === all);
  const capture = (what: string, request: CaptureRequest, done: boolean): preact.JSX.Element => (
    <Button
      text={`${done ? "Captured:" : "Capture the"} ${what}`}
      disabled={done}
      onClick={() => alter(capturing(draft.value, request))}
    />
  );
  const explain = (field: string): void => {
    const added = requestFor(field, model.value ?? { inputs: [] }, row.address);
    alter({ attributions: [...(draft.value.attributions ?? []), added] });
    go("ask");
  };
  const show = async (): Promise<void> => {
    if (await ask()) go(points.includes(OUTPUT) ? "activations" : "gradients");
  };
  const facts = [
    ["Type", row.type],
    ["Output", row.shapes.map(shapeText).join(", ") || "not known"],
    ["Parameters", row.parameters.toLocaleString("en")],
    ["Calls", `${row.calls}`],
    ...row.aliases.map((alias) => ["Also named", alias] as const),
  ] as const;
  return (
    <Panel id="place" title={<bdi class="mono">{row.address || row.name}</bdi>}>
      <Facts facts={facts} />
      <div class="actions">
        {capture("output", requestAt(row.address, OUTPUT), points.includes(OUTPUT))}
        {capture("gradient", requestAt(row.address, GRAD_OUTPUT), points.includes(GRAD_OUTPUT))}
        {row.parameters > 0 && capture("gradients of its parameters", parameterAt(all), hasAll)}
        {row.kind === "module" && row.address !== "" && (
          <MethodMenu label="Explain by this layer" methods={LAYER_METHODS} onChoose={explain} />
        )}
        {asked.value && <Button text="Change it" onClick={() => tryAt({ address: row.address })} />}
        {(points.length > 0 || hasAll) && <Button text="Ask, and show it" class="quiet" onClick={() => void show()} />}
      </div>
    </Panel>
  );
}
