/** What a person sets: one of many, yes or no, numbers, files; and ways through long lists. */

import type { ComponentChildren, ComponentProps } from "preact";
import { useId, useState } from "preact/hooks";
import { exact } from "./text.js";

type ButtonProps = ComponentProps<"button"> & { readonly text: string };

/** Does what its text says. */
export function Button({ text, ...others }: ButtonProps): preact.JSX.Element {
  return (
    <button type="button" {...others}>
      {text}
    </button>
  );
}

/** What every field takes: what it is called, its value, and what takes another one. */
type FieldProps<T> = Readonly<{ label: ComponentChildren; value: T; onChange: (value: T) => void }>;

/** Returns what a person has given in the fields of a form, and what the field of a name takes. */
export function useFields<T extends object>(
  initial: T,
): [T, <Name extends keyof T>(name: Name) => Omit<FieldProps<T[Name]>, "label">] {
  const [fields, setFields] = useState(initial);
  return [
    fields,
    (name) => ({ value: fields[name], onChange: (value) => setFields((now) => ({ ...now, [name]: value })) }),
  ];
}

/** One thing that is, or is not. */
export function Check({ label, value, onChange }: FieldProps<boolean>): preact.JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={({ currentTarget }) => onChange(currentTarget.checked)} />
      {label}
    </label>
  );
}

type ChoiceProps<T extends string> = FieldProps<T> &
  Readonly<{ label: string; of: Readonly<Partial<Record<T, string>>> }>;

/** One of a few, side by side, each with its words. */
export function Choice<T extends string>({ label, of, value, onChange }: ChoiceProps<T>): preact.JSX.Element {
  const name = useId();
  return (
    <div class="choice" role="radiogroup" aria-label={label}>
      {(Object.keys(of) as T[]).map((each) => (
        <label key={each}>
          <input type="radio" name={name} checked={each === value} onChange={() => onChange(each)} />
          <span>{of[each]}</span>
        </label>
      ))}
    </div>
  );
}

/** `of` are values, each with its words, unless it says enough. */
type SelectProps<T> = FieldProps<T> & Readonly<{ of: readonly (T | readonly [T, string])[] }>;

/** One of many, in a list that opens. */
export function Select<T extends string | number>({ label, of, value, onChange }: SelectProps<T>): preact.JSX.Element {
  const pairs = of.map((each) => (typeof each === "object" ? each : ([each, String(each)] as const)));
  const choose = (at: number): void => onChange(pairs[at]?.[0] ?? value);
  return (
    <label>
      <span>{label}</span>
      <select value={value} onChange={({ currentTarget }) => choose(currentTarget.selectedIndex)}>
        {pairs.map(([each, words]) => (
          <option key={each} value={each}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Which numbers a field takes. */
type Range = Readonly<{ least?: number; most?: number; whole?: boolean }>;

/** Whether a number is one of them. */
export function fits(number: number, { least = -LARGEST, most = LARGEST, whole = false }: Range): boolean {
  return number >= least && number <= most && !(whole && number % 1);
}

/** With `empty`, which stands there then, a person may leave it empty: the value is undefined. */
type NumberProps = Range &
  ((FieldProps<number> & Readonly<{ empty?: never }>) | (FieldProps<number | undefined> & Readonly<{ empty: string }>));

/** About the largest number of single precision. */
const LARGEST = 3.4e38;

/** A number that a person types; what is none, or too large, is said and not taken. */
export function NumberField({ label, value, empty, onChange, ...range }: NumberProps): preact.JSX.Element {
  const [typed, setTyped] = useState<{ text: string; value: number | undefined } | undefined>(undefined);
  const { least = -LARGEST, most = LARGEST, whole = false } = range;
  const isRight = (given: string): boolean =>
    given.trim() === "" ? given === "" && empty !== undefined : fits(Number(given), range);
  const text = typed && (isRight(typed.text) || typed.value === value) ? typed.text : undefined; // not for another value
  const wrong = text !== undefined && !isRight(text);
  return (
    <label>
      <span>{label}</span>
      <input
        inputMode="decimal"
        placeholder={empty ?? ""}
        aria-invalid={wrong}
        value={text ?? (value === undefined ? "" : exact(value))}
        onInput={({ currentTarget: { value: given } }) => {
          setTyped({ text: given, value });
          if (isRight(given)) (onChange as (number?: number) => void)(given === "" ? undefined : Number(given));
        }}
        onBlur={() => setTyped(wrong ? typed : undefined)}
      />
      {wrong && (
        <span class="bad small" role="alert">
          {`a ${whole ? "whole " : ""}number${least > -LARGEST ? ` from ${least}` : ""}${most < LARGEST ? ` to ${most}` : ""}`}
        </span>
      )}
    </label>
  );
}

type SliderProps = FieldProps<number> &
  Required<Omit<Range, "whole">> &
  Readonly<{ step: number; kind?: string; onDone?: () => void }>;

/** A number that a person slides; each position on the way is told, and that it was let go. `kind` is a further class. */
export function Slider(props: SliderProps): preact.JSX.Element {
  const { label, value, least, most, step, kind = "", onChange, onDone } = props;
  return (
    <label class={`slider ${kind}`}>
      {label}
      <input
        type="range"
        {...{ min: least, max: most, step, value }}
        onInput={({ currentTarget }) => onChange(currentTarget.valueAsNumber)}
        onChange={onDone}
      />
    </label>
  );
}

/** A number that a person slides within a range, or types, which may be beyond it. */
export function SlidingNumber({ label, value, onDone, ...range }: SliderProps): preact.JSX.Element {
  const type = (typed: number): void => {
    range.onChange(typed);
    onDone?.();
  };
  return (
    <>
      <NumberField {...{ label, value }} onChange={type} />
      <Slider label={<span class="hidden">{label}</span>} {...{ value, ...range }} {...(onDone && { onDone })} />
    </>
  );
}

type FormProps = Readonly<{ kind?: string; onDone: () => void; children: ComponentChildren }>;

/** Fields with a button that ends it; `kind` is its class. */
export function Form({ kind = "tools", onDone, children }: FormProps): preact.JSX.Element {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    onDone();
  };
  return (
    <form class={kind} onSubmit={submit}>
      {children}
    </form>
  );
}

type TextProps = FieldProps<string> &
  Readonly<Partial<Record<"class" | "list" | "placeholder", string> & Record<"hidden" | "required", boolean>>> &
  Readonly<{ type?: "text" | "search" | "password" }>;

/** A text in one line, told as it is typed. With `hidden`, its label is only heard. */
export function TextField({ label, hidden = false, onChange, ...others }: TextProps): preact.JSX.Element {
  return (
    <label class={hidden ? "grow" : ""}>
      <span class={hidden ? "hidden" : ""}>{label}</span>
      <input
        autocomplete="off"
        {...(others as ComponentProps<"input">)}
        onInput={({ currentTarget }) => onChange(currentTarget.value)}
      />
    </label>
  );
}

interface FileProps {
  readonly children: ComponentChildren;
  /** The ending of the file; "" for a folder. */
  readonly accept: string;
  readonly onOpen: (files: readonly File[]) => void;
}

/** A button that opens a file, or a folder; the same one again too, if it was changed meanwhile. */
export function FileButton({ children, accept, onOpen }: FileProps): preact.JSX.Element {
  return (
    <label class="button">
      {children}
      <input
        class="hidden"
        type="file"
        {...(accept ? { accept } : { webkitdirectory: true })}
        onChange={({ currentTarget }) => {
          const files = [...(currentTarget.files ?? [])];
          currentTarget.value = "";
          if (files.length) onOpen(files);
        }}
      />
    </label>
  );
}

/** `words` are what there is one of, and what there are many of. */
type SearchProps = FieldProps<string> & Readonly<{ label: string; words: readonly [string, string]; found: number }>;

/** A field to search a list by, with how many were found. */
export function Search({ label, words, found, ...field }: SearchProps): preact.JSX.Element {
  return (
    <>
      <TextField label="Search" hidden type="search" placeholder={label} {...field} />
      <span class="muted count" role="status">
        {found.toLocaleString("en")} {words[found === 1 ? 0 : 1]}
      </span>
    </>
  );
}

type PagedProps<Item> = Readonly<{
  of: readonly Item[];
  page: number;
  children: (items: readonly Item[]) => ComponentChildren;
}>;

/** A page of a long list, of `page` each; below it the ways to others, if there are any. */
export function Paged<Item>({ of, page, children }: PagedProps<Item>): preact.JSX.Element {
  const [first, setFirst] = useState(0);
  return (
    <>
      {children(of.slice(first, first + page))}
      {of.length > page && (
        <div class="tools">
          <Button text="Previous" disabled={first === 0} onClick={() => setFirst(first - page)} />
          <span class="muted">
            {first + 1} to {Math.min(first + page, of.length)} of {of.length.toLocaleString("en")}
          </span>
          <Button text="Next" disabled={first + page >= of.length} onClick={() => setFirst(first + page)} />
        </div>
      )}
    </>
  );
}
