/** View 1: what a model is made of, and where one can look into it. */

import { signal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { DataType } from "@cutaway/client";
import { model } from "../state/asking.js";
import { Graph } from "./Graph.js";
import { shapeText } from "./graph.js";
import { ModuleTree } from "./ModuleTree.js";
import { PlaceDetails } from "./PlaceDetails.js";
import { type Row, rowsOf } from "./tree.js";
import "./models.css";

/** The place that is chosen in the tree. */
export const chosen = signal<Row | undefined>(undefined);

/** Shows the model. */
export function ModelsView(): preact.JSX.Element | null {
  const detail = model.value;
  const rows = useMemo(() => (detail ? rowsOf(detail) : []), [detail]);
  if (detail === undefined) return null;
  const { provenance } = detail;
  const place = rows.some((row) => row === chosen.value) ? chosen.value : undefined;
  const facts: [string, string][] = [
    ["Parameters", (rows[0]?.parameters ?? 0).toLocaleString("en")],
    ["Modules", detail.modules.length.toLocaleString("en")],
    ["Classes", detail.labels.length ? detail.labels.length.toLocaleString("en") : "none"],
    ["Runs on", provenance?.device ?? ""],
    ["PyTorch", provenance?.torchVersion ?? ""],
    ["Weights", provenance?.weightsSha256.slice(0, 12) ?? ""],
  ];
  return (
    <div class="models">
      <section class="panel" aria-labelledby="about">
        <h2 id="about">What it is</h2>
        <dl class="facts">
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        <Ports title="Takes" ports={detail.inputs} />
        <Ports title="Returns" ports={detail.outputs} />
      </section>
      <section class="panel insides" aria-labelledby="insides">
        <h2 id="insides">What is inside</h2>
        <ModuleTree key={detail.model?.name} rows={rows} chosen={place} onChoose={(row) => (chosen.value = row)} />
      </section>
      <div class="beside">
        <PlaceDetails row={place ?? rows[0]} />
        <Graph key={detail.model?.name} rows={rows} chosen={place} onChoose={(row) => (chosen.value = row)} />
      </div>
    </div>
  );
}

interface Port {
  readonly name: string;
  readonly dataType: DataType;
  readonly shape: readonly bigint[];
}

function Ports({ title, ports }: { title: string; ports: readonly Port[] }): preact.JSX.Element {
  return (
    <div class="ports">
      <h3>{title}</h3>
      <ul>
        {ports.map(({ name, dataType, shape }) => (
          <li key={name}>
            <bdi class="mono">{name}</bdi>{" "}
            <span class="muted">
              {dataType ? DataType[dataType].toLowerCase() : ""} {shapeText(shape.map(Number))}
            </span>
          </li>
        ))}
        {ports.length === 0 && <li class="muted">not known: the model has no example</li>}
      </ul>
    </div>
  );
}
