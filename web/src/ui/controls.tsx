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

type CheckProps = Readonly<{ label: string; checked: boolean; onCheck: (checked: boolean) => void }>;

/** One thing that is, or is not. */
export function Check({ label, checked, onCheck }: CheckProps): preact.JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={({ currentTarget }) => onCheck(currentTarget.checked)} />
      {label}
    </label>
  );
}

interface ChoiceProps<T extends string> {
  readonly label: string;
  readonly of: readonly T[];
  readonly names: Readonly<Record<T, string>>;
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

/** One of a few, side by side. */
export function Choice<T extends string>({ label, of, names, value, onChoose }: ChoiceProps<T>): preact.JSX.Element {
  const name = useId();
  return (
    <div class="choice" role="radiogroup" aria-label={label}>
      {of.map((each) => (
        <label key={each}>
          <input type="radio" name={name} checked={each === value} onChange={() => onChoose(each)} />
          <span>{names[each]}</span>
        </label>
      ))}
    </div>
  );
}

interface SelectProps<T extends string | number> {
  readonly label: string;
  /** Values, each with its words, unless it says enough. */
  readonly of: readonly (T | readonly [T, string])[];
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

/** One of many, in a list that opens. */
export function Select<T extends string | number>({ label, of, value, onChoose }: SelectProps<T>): preact.JSX.Element {
  const pairs = of.map((each) => (typeof each === "object" ? each : ([each, String(each)] as const)));
  const choose = (at: number): void => onChoose(pairs[at]?.[0] ?? value);
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

interface NumberProps extends Range {
  readonly label: ComponentChildren;
  readonly value: number | undefined;
  /** What stands there when it is empty, which is allowed then. */
  readonly empty?: string;
  /** Takes undefined where a person leaves it empty. */
  readonly onChange: (value: number | undefined) => void;
}

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
          if (isRight(given)) onChange(given === "" ? undefined : Number(given));
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

type SliderProps = Required<Omit<Range, "whole">> &
  Readonly<{
    label: ComponentChildren;
    value: number;
    step: number;
    kind?: string;
    onChange: (value: number) => void;
    onDone?: () => void;
  }>;

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
  const type = (typed = 0): void => {
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

type TextProps = ComponentProps<"input"> &
  Readonly<{ label: string; hidden?: boolean; onText: (text: string) => void }>;

/** A text in one line, told as it is typed. */
export function TextField({ label, hidden = false, onText, ...others }: TextProps): preact.JSX.Element {
  return (
    <label class={hidden ? "grow" : ""}>
      <span class={hidden ? "hidden" : ""}>{label}</span>
      <input {...others} onInput={({ currentTarget }) => onText(currentTarget.value)} />
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

interface SearchProps {
  readonly hint: string;
  readonly value: string;
  /** What there is one of, and what there are many of. */
  readonly words: readonly [string, string];
  readonly found: number;
  readonly onSearch: (text: string) => void;
}

/** A field to search a list by, with how many were found. */
export function Search({ hint, value, words, found, onSearch }: SearchProps): preact.JSX.Element {
  return (
    <>
      <TextField label="Search" hidden type="search" placeholder={hint} value={value} onText={onSearch} />
      <span class="muted count" role="status">
        {found.toLocaleString("en")} {words[found === 1 ? 0 : 1]}
      </span>
    </>
  );
}

type PagerProps = Readonly<{ first: number; page: number; count: number; onTurn: (first: number) => void }>;

/** Turns pages of a long list, of `page` each, from its `first` on; nothing where one page has all. */
export function Pager({ first, page, count, onTurn }: PagerProps): preact.JSX.Element | null {
  if (count <= page) return null;
  return (
    <div class="tools">
      <Button text="Previous" disabled={first === 0} onClick={() => onTurn(first - page)} />
      <span class="muted">
        {first + 1} to {Math.min(first + page, count)} of {count.toLocaleString("en")}
      </span>
      <Button text="Next" disabled={first + page >= count} onClick={() => onTurn(first + page)} />
    </div>
  );
}
