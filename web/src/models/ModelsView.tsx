/** View 1: what a model is made of, and where one can look into it. */

import { Check } from "../ui/controls.js";
import { Panel, Facts } from "../ui/parts.js";
import { signal } from "@preact/signals";
import { useMemo, useState } from "preact/hooks";
import { DataType, type ModelDetail } from "@cutaway/client";
import { model } from "../state/asking.js";
import { Graph } from "./Graph.js";
import { shapeText } from "../ui/text.js";
import { ModuleTree } from "./ModuleTree.js";
import { PlaceDetails } from "./PlaceDetails.js";
import { allIn, type ModuleNode, treeOf } from "./tree.js";
import { mayInspect } from "../ask/start.js";
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
  const onChoose = ({ address }: ModuleNode): string => (chosen.value = address);
  const place = allIn(rows).find(({ address }) => address === chosen.value);
  const facts = [
    ...(mayInspect(detail)
      ? ([
          ["Parameters", (rows[0]?.parameters ?? 0).toLocaleString("en")],
          ["Modules", modules.length.toLocaleString("en")],
        ] as const)
      : []),
    ["Classes", detail.labels.length ? detail.labels.length.toLocaleString("en") : "none"],
    ["Runs on", provenance?.device ?? ""],
    ["PyTorch", provenance?.torchVersion ?? ""],
    ["Weights", provenance?.weightsSha256.slice(0, 12) ?? ""],
    ...detail.inputs.map((each) => ["Takes", portText(each)] as const),
    ...detail.outputs.map((each) => ["Returns", portText(each)] as const),
    ...(detail.outputs.length ? [] : [["Returns", "not known: the model has no example"] as const]),
  ] as const;
  return (
    <div class="models">
      <Panel id="about" title="What it is">
        <Facts facts={facts} />
      </Panel>
      <Panel
        id="insides"
        title="What is inside"
        kind="insides"
        beside={operators.length > 0 && <Check label="Operators" checked={withOperators} onCheck={setWithOperators} />}
      >
        {mayInspect(detail) ? (
          <ModuleTree key={detail.model?.name} rows={rows} chosen={place} onChoose={onChoose} />
        ) : (
          <p class="muted">Your token may not see modules of this model: that needs the scope inspect.</p>
        )}
      </Panel>
      {mayInspect(detail) && (
        <div class="beside">
          <PlaceDetails row={place ?? rows[0]} />
          <Graph key={detail.model?.name} rows={rows} chosen={place} onChoose={onChoose} />
        </div>
      )}
    </div>
  );
}

type Port = Pick<ModelDetail["outputs"][number], "name" | "dataType" | "shape">;

function portText({ name, dataType, shape }: Port): string {
  return `${name}: ${dataType ? DataType[dataType].toLowerCase() : ""} ${shapeText(shape.map(Number))}`;
}
