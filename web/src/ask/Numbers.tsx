/** Any tensor: nested lists of numbers, or an NPY file. */

import { useState } from "preact/hooks";
import { DataType, type Tensor } from "@cutaway/client";
import { FileButton } from "../app/controls.js";
import { shapeText } from "../pictures/text.js";
import { fromLists, fromNpy, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

interface Props {
  readonly spec: InputSpec;
  readonly value: Tensor | undefined;
  /** Takes undefined where a person has typed what is no tensor. */
  readonly onChange: (value: Tensor | undefined) => void;
}

/** Takes lists or a file, the batch as the outermost axis. */
export function Numbers({ spec, value, onChange }: Props): preact.JSX.Element {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const take = (read: () => Tensor): void => {
    try {
      onChange(read());
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
          value={text}
          aria-invalid={wrong !== ""}
          onInput={({ currentTarget }) => {
            setText(currentTarget.value);
            take(() => fromLists(currentTarget.value, spec.dataType));
          }}
        />
      </label>
      <div class="actions">
        <FileButton
          accept=".npy"
          onOpen={([file]) => void file?.arrayBuffer().then((bytes) => take(() => fromNpy(new Uint8Array(bytes))))}
        >
          NPY file
        </FileButton>
        {spec.shape.length > 0 && (
          <button type="button" class="quiet" onClick={() => take(() => zeros(spec))}>
            Zeros
          </button>
        )}
        {value && (
          <span class="muted small">
            {DataType[value.dataType].toLowerCase()} {shapeText(value.shape)}
          </span>
        )}
      </div>
      {wrong && (
        <p class="problem" role="alert">
          {wrong}
        </p>
      )}
    </div>
  );
}
