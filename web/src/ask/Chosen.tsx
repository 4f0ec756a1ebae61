/** What is to come back from inside: captures and explanations, chosen one by one. */

import { useState } from "preact/hooks";
import { HookPoint, type ModelDetail } from "@cutaway/client";
import type { CaptureRequest } from "@cutaway/contract/capture_pb";
import { Problem } from "../app/Problem.js";
import { requestAt } from "../models/places.js";
import { alter, draft, failure } from "../state/asking.js";
import { messageOf } from "../state/draft.js";
import { METHODS, requestFor } from "./methods.js";
import { MethodFields } from "./MethodFields.js";

const POINTS: readonly [HookPoint, string][] = [
  [HookPoint.OUTPUT, "output"],
  [HookPoint.GRAD_OUTPUT, "gradient at the output"],
  [HookPoint.INPUT, "input"],
  [HookPoint.GRAD_INPUT, "gradient at the input"],
];

/** Shows what is chosen, and lets a person choose more. */
export function Chosen({ detail }: { detail: ModelDetail }): preact.JSX.Element {
  const { captures, attributions } = messageOf(draft.value);
  return (
    <>
      <datalist id="places">
        {detail.modules.slice(1, 2000).map(({ name }) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <section class="panel" aria-labelledby="captures">
        <h2 id="captures">Look at</h2>
        <ul class="chips">
          {captures.map((each, index) => (
            <li key={index} class={atFault(`captures[${index}]`) ? "fault" : ""}>
              <bdi class="mono">{each.where.value ?? ""}</bdi>
              <span class="muted">{pointsText(each)}</span>
              <Remove
                what={each.where.value ?? ""}
                onRemove={() => alter({ captures: captures.toSpliced(index, 1) })}
              />
            </li>
          ))}
        </ul>
        <AddCapture onAdd={(added) => alter({ captures: [...captures, added] })} />
        <Problem of={["captures"]} />
      </section>
      <section class="panel" aria-labelledby="explanations">
        <h2 id="explanations">Explain by</h2>
        <ul class="methods">
          {attributions.map((each, index) => (
            <li key={index} class={atFault(`attributions[${index}]`) ? "fault" : ""}>
              <MethodFields
                request={each}
                onChange={(changed) => alter({ attributions: attributions.with(index, changed) })}
              />
              <Remove
                what={each.method.case ?? ""}
                onRemove={() => alter({ attributions: attributions.toSpliced(index, 1) })}
              />
            </li>
          ))}
        </ul>
        <select
          aria-label="Add a method"
          value=""
          onChange={({ currentTarget }) => {
            const layer = detail.modules.findLast(({ calls, name }) => calls > 0 && name !== "")?.name;
            alter({ attributions: [...attributions, requestFor(currentTarget.value, layer)] });
          }}
        >
          <option value="">Add a method…</option>
          {(["inputs", "a layer", "a neuron"] as const).map((of) => (
            <optgroup key={of} label={`Explains ${of}`}>
              {METHODS.filter((each) => each.of === of).map(({ field, name }) => (
                <option key={field} value={field}>
                  {name}
                </option>
              ))}
            </optgroup>
          ))}
        </select>
        <Problem of={["attributions"]} />
      </section>
    </>
  );
}

function atFault(field: string): boolean {
  return failure.value?.field.startsWith(field) ?? false;
}

function pointsText({ points }: CaptureRequest): string {
  return POINTS.filter(([point]) => points.includes(point))
    .map(([, name]) => name)
    .join(", ");
}

function Remove({ what, onRemove }: { what: string; onRemove: () => void }): preact.JSX.Element {
  return (
    <button type="button" class="remove" aria-label={`Remove ${what}`} onClick={onRemove}>
      ×
    </button>
  );
}

function AddCapture({ onAdd }: { onAdd: (added: CaptureRequest) => void }): preact.JSX.Element {
  const [module, setModule] = useState("");
  const [point, setPoint] = useState(HookPoint.OUTPUT);
  const add = (): void => {
    const value = module.trim();
    if (value === "") return;
    onAdd(requestAt(value, point));
    setModule("");
  };
  return (
    <div class="tools">
      <label class="grow">
        <span class="hidden">A module, an operator or a glob</span>
        <input
          class="mono"
          list="places"
          placeholder="module, operator or glob"
          value={module}
          onInput={({ currentTarget }) => setModule(currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.ctrlKey) return;
            event.preventDefault();
            add();
          }}
        />
      </label>
      <select
        aria-label="What of it"
        value={point}
        onChange={({ currentTarget }) => setPoint(POINTS[currentTarget.selectedIndex]?.[0] ?? HookPoint.OUTPUT)}
      >
        {POINTS.map(([each, name]) => (
          <option key={each} value={each}>
            {name}
          </option>
        ))}
      </select>
      <button type="button" onClick={add}>
        Add
      </button>
    </div>
  );
}
