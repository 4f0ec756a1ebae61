/** Any tensor: nested lists of numbers, or an NPY file. */

import { useState } from "preact/hooks";
import { DataType, type Tensor } from "@cutaway/client";
import { Button, FileButton } from "../ui/controls.js";
import { shapeText } from "../ui/text.js";
import { fromLists, fromNpy, toLists, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

type Props = Readonly<{ spec: InputSpec; value: Tensor | undefined; onChange: (value: Tensor | undefined) => void }>;

/** What a person gave: a text, unless it was a file; a tensor, unless it is none; and why it is none. */
type Given = Readonly<{ text: string | undefined; value: Tensor | undefined; wrong: string }>;

/** A tensor with more numbers is not shown as lists. */
const MOST_NUMBERS = 1024;

/** Takes lists or a file, the batch as the outermost axis; gives undefined where a person has typed what is no tensor. */
export function Numbers({ spec, value, onChange }: Props): preact.JSX.Element {
  const [given, setGiven] = useState<Given | undefined>(undefined);
  const now = given?.value === value ? given : undefined;
  const own = value && value.data.length <= MOST_NUMBERS ? toLists(value) : "";
  const take = (read: () => Tensor, text?: string): void => {
    let next: Given = { text: text ?? now?.text, value: text === undefined ? value : undefined, wrong: "" };
    try {
      next = { ...next, text, value: read() };
    } catch (failure) {
      next = { ...next, wrong: failure instanceof Error ? failure.message : String(failure) };
    }
    setGiven(next);
    if (next.value !== value) onChange(next.value);
  };
  return (
    <div class="numbers">
      <label>
        <span class="muted small">
          Nested lists, the batch first, or lines of numbers: {shapeText(spec.shape.map(Number)) || "any shape"}
        </span>
        <textarea
          class="mono"
          rows={4}
          value={now?.text ?? own}
          aria-invalid={Boolean(now?.wrong)}
          onInput={({ currentTarget: { value: text } }) => take(() => fromLists(text, spec.dataType), text)}
        />
      </label>
      <div class="actions">
        <FileButton
          accept=".npy"
          onOpen={([file]) => void file?.arrayBuffer().then((bytes) => take(() => fromNpy(bytes, spec.dataType)))}
        >
          NPY file
        </FileButton>
        {spec.shape.length > 0 && <Button text="Zeros" class="quiet" onClick={() => take(() => zeros(spec))} />}
        {value && (
          <span class="muted small">
            {DataType[value.dataType].toLowerCase()} {shapeText(value.shape)}
          </span>
        )}
      </div>
      {now?.wrong && (
        <p class="problem" role="alert">
          {now.wrong}
        </p>
      )}
    </div>
  );
}
