/** Any tensor: nested lists of numbers, or an NPY file. */

import { useState } from "preact/hooks";
import { DataType, type Tensor } from "@cutaway/client";
import { Button, FileButton } from "../app/controls.js";
import { shapeText } from "../pictures/text.js";
import { fromLists, fromNpy, toLists, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

interface Props {
  readonly spec: InputSpec;
  readonly value: Tensor | undefined;
  /** Takes undefined where a person has typed what is no tensor. */
  readonly onChange: (value: Tensor | undefined) => void;
}

/** A tensor with more numbers is not shown as lists. */
const MOST_NUMBERS = 1024;

/** Takes lists or a file, the batch as the outermost axis. */
export function Numbers({ spec, value, onChange }: Props): preact.JSX.Element {
  const [typed, setTyped] = useState<{ text: string; value?: Tensor } | undefined>(undefined);
  const [wrong, setWrong] = useState("");
  const isTyped = typed !== undefined && typed.value === value;
  const own = value && value.data.length <= MOST_NUMBERS ? toLists(value) : "";
  const take = (read: () => Tensor, text?: string): void => {
    setTyped(text === undefined ? undefined : { text });
    try {
      const found = read();
      onChange(found);
      if (text !== undefined) setTyped({ text, value: found });
      setWrong("");
    } catch (failure) {
      onChange(undefined);
      setWrong(failure instanceof Error ? failure.message : String(failure));
    }
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
          value={isTyped ? typed.text : own}
          aria-invalid={isTyped && wrong !== ""}
          onInput={({ currentTarget: { value: text } }) => take(() => fromLists(text, spec.dataType), text)}
        />
      </label>
      <div class="actions">
        <FileButton
          accept=".npy"
          onOpen={([file]) => void file?.arrayBuffer().then((bytes) => take(() => fromNpy(bytes)))}
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
      {isTyped && wrong && (
        <p class="problem" role="alert">
          {wrong}
        </p>
      )}
    </div>
  );
}
