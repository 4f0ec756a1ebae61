/** View 3: what the model has inside, for one example. */

import { useState } from "preact/hooks";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { Empty, Panel } from "../app/parts.js";
import { Channels } from "./Channels.js";
import { Sequence } from "./Sequence.js";
import { partOf } from "../measures/numbers.js";
import { layoutOf } from "../measures/layout.js";
import { shapeText } from "../pictures/text.js";
import { leavesOf, requestAt } from "../models/places.js";
import { Statistics } from "../pictures/Statistics.js";
import type { ViewProps } from "../state/asked.js";
import "./activations.css";

/** How many layers are captured at once. */
const MOST_LAYERS = 64;

/** Shows one capture, and lets a person choose which. */
export function ActivationsView(props: ViewProps): preact.JSX.Element {
  const { asked, row, ask } = props;
  const { captures } = asked.reply;
  const keys = Object.keys(captures);
  const [wanted, setWanted] = useState("");
  const key = keys.includes(wanted) ? wanted : (keys.find((each) => captures[each]?.shape.length === 4) ?? keys[0]);
  const tensor = key === undefined ? undefined : captures[key];
  const everyLayer = (): void => ask({ captures: layersOf(asked.model) });
  if (key === undefined || tensor === undefined) {
    return (
      <Empty
        title="Nothing was captured"
        text="Choose places in the model, or under Ask; or take the first sixty-four layers."
        action="Capture every layer"
        onAct={everyLayer}
      />
    );
  }
  const part = partOf(tensor, row);
  const layout = layoutOf(part.shape);
  return (
    <div class="activations">
      <Panel
        id="captured"
        title="Captured"
        beside={
          <button class="quiet" onClick={everyLayer}>
            Capture every layer
          </button>
        }
      >
        <ul class="captured" aria-label="Places">
          {keys.map((each) => (
            <li key={each}>
              <button class="captured-place" aria-pressed={each === key} onClick={() => setWanted(each)}>
                <bdi class="mono">{each}</bdi>
                <span class="muted small">{shapeText(captures[each]?.shape ?? [])}</span>
              </button>
            </li>
          ))}
        </ul>
      </Panel>
      <Panel
        id="activation"
        title={[<bdi class="mono">{key}</bdi>, " ", <span class="muted">{shapeText(part.shape)}</span>]}
        kind="shown"
      >
        <Statistics values={part.values} />
        {layout.kind === "planes" ? (
          <Channels key={key} {...props} place={key} part={part} />
        ) : (
          <Sequence {...props} part={part} label={key} />
        )}
      </Panel>
    </div>
  );
}

/** Returns requests for the output of the first layers: modules that ran and have none inside. */
function layersOf(model: ModelDetail): CaptureRequest[] {
  return leavesOf(model)
    .slice(0, MOST_LAYERS)
    .map(({ name }) => requestAt(name, HookPoint.OUTPUT));
}
