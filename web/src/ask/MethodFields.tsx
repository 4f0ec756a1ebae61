/** One explanation that is asked for: its name, and the fields that may differ from their defaults. */

import type { AttributionRequest } from "@cutaway/contract/attribution_pb";
import { Select } from "../app/Select.js";
import { methodIn, type Option, optionOf, withOption } from "./methods.js";

interface Props {
  readonly request: AttributionRequest;
  readonly onChange: (changed: AttributionRequest) => void;
}

/** Shows a method with its fields; those that have defaults are folded away. */
export function MethodFields({ request, onChange }: Props): preact.JSX.Element {
  const method = methodIn(request);
  const options = method?.options ?? [];
  const required = options.filter(({ kind }) => kind === "layer" || kind === "indices");
  const further = options.filter((each) => !required.includes(each));
  const field = (option: Option): preact.JSX.Element => (
    <label key={option.label}>
      <span>{option.label}</span>
      <Field
        option={option}
        value={optionOf(request, option)}
        onChange={(text) => onChange(withOption(request, option, text))}
      />
    </label>
  );
  return (
    <div class="method">
      <strong>{method?.name ?? "?"}</strong>
      {required.length > 0 && <div class="fields">{required.map(field)}</div>}
      {further.length > 0 && (
        <details>
          <summary class="muted small">Options</summary>
          <div class="fields">{further.map(field)}</div>
        </details>
      )}
    </div>
  );
}

const YES_NO = [["", "default"], ["true", "yes"], ["false", "no"]] as const; // prettier-ignore

interface FieldProps {
  readonly option: Option;
  readonly value: string;
  readonly onChange: (text: string) => void;
}

function Field({ option: { kind }, value, onChange }: FieldProps): preact.JSX.Element {
  if (kind === "boolean") return <Select of={YES_NO} value={value} onChoose={onChange} />;
  return (
    <input
      class={kind === "number" ? "" : "mono"}
      type={kind === "number" ? "number" : "text"}
      step="any"
      {...(kind === "layer" ? { list: "places" } : {})}
      placeholder={kind === "number" ? "default" : ""}
      value={value}
      onChange={({ currentTarget }) => onChange(currentTarget.value)}
    />
  );
}
