/** View 1: what a model is made of, and where one can look into it. */

import { DataType, HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { signal } from "@preact/signals";
import { useMemo, useState } from "preact/hooks";
import { MethodMenu } from "../ask/MethodFields.js";
import { METHODS, requestFor } from "../ask/methods.js";
import { mayInspect } from "../ask/start.js";
import { tryAt } from "../edits/live.js";
import { alter, ask, asked, draft, go, messageOf, model } from "../state/index.js";
import { Button, Check, Facts, Panel, shapeText } from "../ui/index.js";
import { FlowGraph } from "./FlowGraph.js";
import { ModuleTree } from "./ModuleTree.js";
import { capturing, parameterAt, requestAt } from "./places.js";
import { allIn, type ModuleNode, treeOf } from "./tree.js";
import "./models.css";

/** The address of the place that is chosen. */
const chosen = signal<string | undefined>(undefined);

/** Shows the model. */
export function ModelsView(): preact.JSX.Element | null {
  const detail = model.value;
  const [withOperators, setWithOperators] = useState(false);
  const { modules = [], operators = [] } = detail ?? {};
  const rows = useMemo(() => treeOf(modules, withOperators ? operators : []), [detail, withOperators]);
  if (detail === undefined) return null;
  const { provenance } = detail;
  const onChoose = ({ address, kind }: ModuleNode): void => {
    chosen.value = address;
    if (kind === "operator") setWithOperators(true);
  };
  const place = allIn(rows).find(({ address }) => address === chosen.value);
  const counts = [
    ["Parameters", (rows[0]?.parameters ?? 0).toLocaleString("en")],
    ["Modules", modules.length.toLocaleString("en")],
  ] as const;
  const facts = [
    ...(mayInspect(detail) ? counts : []),
    ["Classes", detail.labels.length ? detail.labels.length.toLocaleString("en") : "none"],
    ["Runs on", provenance?.device ?? ""],
    ["PyTorch", provenance?.torchVersion ?? ""],
    ["Weights", provenance?.weightsSha256.slice(0, 12) ?? ""],
    ...detail.inputs.map((each) => ["Takes", portText(each)] as const),
    ...detail.outputs.map((each) => ["Returns", portText(each)] as const),
    ...(detail.outputs.length ? [] : [["Returns", "not known: the model has no example"] as const]),
  ] as const;
  const check = <Check label="Operators" value={withOperators} onChange={setWithOperators} />;
  return (
    <div class="models">
      <Panel id="about" title="What it is">
        <Facts facts={facts} />
      </Panel>
      <Panel id="insides" title="What is inside" kind="insides" beside={operators.length > 0 && check}>
        {mayInspect(detail) ? (
          <ModuleTree key={detail.model?.name} rows={rows} chosen={place} onChoose={onChoose} />
        ) : (
          <p class="muted">Your token may not see modules of this model: that needs the scope inspect.</p>
        )}
      </Panel>
      {mayInspect(detail) && (
        <div class="beside">
          <PlaceDetails row={place ?? rows[0]} />
        </div>
      )}
      {mayInspect(detail) && <FlowGraph key={detail.model?.name} {...{ detail, onChoose }} chosen={chosen.value} />}
    </div>
  );
}

type Port = Pick<ModelDetail["outputs"][number], "name" | "dataType" | "shape">;

function portText({ name, dataType, shape }: Port): string {
  return `${name}: ${dataType ? DataType[dataType].toLowerCase() : ""} ${shapeText(shape.map(Number))}`;
}

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
  const take = (request: CaptureRequest): void => alter(capturing(draft.value, request));
  const capture = (what: string, request: CaptureRequest, done: boolean): preact.JSX.Element => (
    <Button text={`${done ? "Captured:" : "Capture the"} ${what}`} disabled={done} onClick={() => take(request)} />
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
