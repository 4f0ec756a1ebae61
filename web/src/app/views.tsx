/** The views, in the order of the navigation. */

import type { ComponentType } from "preact";
import { ActivationsView } from "../activations/ActivationsView.js";
import { AskView } from "../ask/AskView.js";
import { CostView } from "../cost/CostView.js";
import { EditsView } from "../edits/EditsView.js";
import { ExplanationsView } from "../explanations/ExplanationsView.js";
import { Empty } from "../ui/parts.js";
import { GradientsView } from "../gradients/GradientsView.js";
import { JobsView } from "../jobs/JobsView.js";
import { ModelsView } from "../models/ModelsView.js";
import type { ViewProps } from "../state/exchange.js";
import { ask, asked, row } from "../state/asking.js";
import { go } from "../state/route.js";
import { TakeView } from "../take/TakeView.js";

/** A view. */
export interface View {
  /** Its name in the address. */
  readonly name: string;
  readonly title: string;
  readonly Shown: ComponentType;
}

/** All views. */
export const VIEWS: readonly [View, ...View[]] = [
  { name: "models", title: "Model", Shown: ModelsView },
  { name: "ask", title: "Ask", Shown: AskView },
  { name: "activations", title: "Activations", Shown: answered(ActivationsView) },
  { name: "explanations", title: "Explanations", Shown: answered(ExplanationsView) },
  { name: "edits", title: "Edits", Shown: answered(EditsView) },
  { name: "gradients", title: "Gradients", Shown: answered(GradientsView) },
  { name: "cost", title: "Cost", Shown: answered(CostView) },
  { name: "take", title: "Take along", Shown: answered(TakeView) },
  { name: "jobs", title: "Jobs", Shown: JobsView },
];

/** Returns a view of an answer, which says so where there is none yet. */
function answered(Shown: ComponentType<ViewProps>): ComponentType {
  return function Answered(): preact.JSX.Element {
    const answer = asked.value;
    if (!answer) return <Empty title="Nothing has been asked yet." action="Ask something" onAct={() => go("ask")} />;
    const { model } = answer.model;
    return <Shown key={model?.name} asked={answer} row={row.value} ask={(change) => void ask(change)} />;
  };
}
