/** View 6: what an answer rests on: a small change that changes it, concepts, and training rows. */

import type { ViewProps } from "../state/index.js";
import { Panel } from "../ui/index.js";
import { Concepts } from "./Concepts.js";
import { Counterfactual } from "./Counterfactual.js";
import { Influence } from "./Influence.js";
import "./evidence.css";

/** Shows what can be asked for, and what was found. */
export function EvidenceView(props: ViewProps): preact.JSX.Element {
  return (
    <div class="evidence">
      <Panel id="counterfactual" title="What would make another class of it?">
        <Counterfactual {...props} />
      </Panel>
      <Panel id="influence" title="Which training rows made this prediction?">
        <Influence {...props} />
      </Panel>
      <Panel id="concepts" title="Does the model use a concept?">
        <Concepts {...props} />
      </Panel>
    </div>
  );
}
