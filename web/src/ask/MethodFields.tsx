/** One explanation that is asked for: its name, and the fields that may differ from their defaults. */

import { DataType, type Tensor } from "@cutaway/client";
import type { AttributionRequest } from "@cutaway/contract/attribution_pb";
import { useState } from "preact/hooks";
import { NumberField, Select } from "../ui/index.js";
import { Numbers } from "./Inputs.js";
import { type Method, methodIn, optionOf, optionsFor, tensorAt, tensorJson, withOption } from "./methods.js";
import type { InputSpec } from "./ways.js";

interface Props {
  readonly request: AttributionRequest;
  readonly inputs: readonly InputSpec[];
  /** Whether the last answer has an error for it: then all fields are shown. */
  readonly failed: boolean;
  readonly onChange: (changed: AttributionRequest) => void;
}

/** Shows a method with its fields; those that have defaults are folded away. */
export function MethodFields({ request, inputs, failed, onChange }: Props): preact.JSX.Element {
  const method = methodIn(request);
  const options = method ? optionsFor(method, inputs) : [];
  const further = options.filter(({ required }) => !required);
  const field = (option: Option): preact.JSX.Element => <Field key={option.label} {...{ request, option, onChange }} />;
  return (
    <div class="method">
      <strong>{method?.name ?? "?"}</strong>
      <div class="fields">{options.filter(({ required }) => required).map(field)}</div>
      {further.length > 0 && (
        <details open={failed}>
          <summary class="muted small">Options</summary>
          <div class="fields">{further.map(field)}</div>
        </details>
      )}
    </div>
  );
}

const DEFAULT = ["", "default"] as const;
const YES_NO = [DEFAULT, ["true", "yes"], ["false", "no"]] as const;

type Option = ReturnType<typeof optionsFor>[number];

type FieldProps = Pick<Props, "request" | "onChange"> & Readonly<{ option: Option }>;

function Field({ request, option, onChange }: FieldProps): preact.JSX.Element {
  const { kind, label, choices, input } = option;
  const [refused, setRefused] = useState<{ text: string; why: string } | undefined>(undefined);
  const value = optionOf(request, option);
  const put = (text: string): void => {
    try {
      onChange(withOption(request, option, text));
      setRefused(undefined);
    } catch (failure) {
      setRefused({ text, why: failure instanceof Error ? failure.message : String(failure) });
    }
  };
  if (kind === "tensor" && input) {
    const change = (tensor: Tensor | undefined): void => put(tensor ? tensorJson(tensor) : "");
    const spec = option.path.includes("masks") ? { ...input, dataType: DataType.INT64 } : input;
    return (
      <fieldset>
        <legend class="muted small">{label}</legend>
        <Numbers spec={spec} value={tensorAt(request, option)} onChange={change} />
      </fieldset>
    );
  }
  if (kind === "boolean" || kind === "choice") {
    const named = (choices ?? []).map((each) => [each, each.replace(/^[A-Z]+_/, "").toLowerCase()] as const);
    return <Select label={label} of={choices ? [DEFAULT, ...named] : YES_NO} value={value} onChange={put} />;
  }
  if (kind === "number") {
    const { whole = false } = option;
    const number = value === "" ? undefined : Number(value);
    const change = (changed?: number): void => put(changed === undefined ? "" : String(changed));
    return (
      <NumberField {...{ label, whole, ...(whole && { least: 0 }) }} value={number} empty="default" onChange={change} />
    );
  }
  return (
    <label>
      <span>{label}</span>
      <input
        {...{ class: "mono", type: "text", list: kind === "layer" ? "places" : "" }}
        placeholder={kind === "json" ? "{}, as the contract has it" : ""}
        aria-invalid={refused !== undefined}
        value={refused?.text ?? value}
        onChange={({ currentTarget }) => put(currentTarget.value)}
      />
      {refused && <span class="bad small">{refused.why}</span>}
    </label>
  );
}

type MenuProps = Readonly<{ label: string; methods: readonly Method[]; onChoose: (field: string) => void }>;

/** Methods to choose from by their field, one after another, in the order of what they explain. */
export function MethodMenu({ label, methods, onChoose }: MenuProps): preact.JSX.Element {
  return (
    <select aria-label={label} value="" onChange={({ currentTarget }) => onChoose(currentTarget.value)}>
      <option value="">{label}…</option>
      {[...new Set(methods.map(({ of }) => of))].map((of) => (
        <optgroup key={of} label={`Explains ${of}`}>
          {methods.map((each) => each.of === of && <option value={each.field}>{each.name}</option>)}
        </optgroup>
      ))}
    </select>
  );
}
