/** A small grey image, drawn pixel by pixel. */

import { useState } from "preact/hooks";
import type { Tensor } from "@cutaway/client";
import { Button, Check } from "../ui/controls.js";
import { GREY, pixelsOf } from "../pictures/colours.js";
import { Picture } from "../pictures/Picture.js";
import { ask, row } from "../state/asking.js";
import { elements, numbers, zeros } from "./arrays.js";
import type { InputSpec } from "./ways.js";

type Props = Readonly<{ spec: InputSpec; value: Tensor | undefined; onChange: (value: Tensor) => void }>;

/** Lets a person draw, with a pointer or with the arrow keys and the space bar, which also takes away. */
export function Drawing({ spec, value = zeros(spec), onChange }: Props): preact.JSX.Element {
  const [live, setLive] = useState(false);
  const [erases, setErases] = useState(false);
  const [rows = 1, , height = 1, width = 1] = value.shape;
  const size = height * width;
  const begin = Math.min(row.value, rows - 1) * size;
  const data = elements(value);
  const drawn = data.slice(begin, begin + size);
  const put = (changed: number[]): void => onChange(numbers(changed, value.shape, value.dataType));
  const done = (): void => void (live && ask());
  const paint = (index: number, byKey: boolean): void => {
    const isDrawn = (drawn[index] ?? 0) > 0.5;
    put(data.with(begin + index, erases || (byKey && isDrawn) ? 0 : 1));
    if (byKey) done();
  };
  return (
    <div class="drawing">
      <div onLostPointerCapture={done}>
        <Picture label="Drawing" values={drawn} width={width} pixels={pixelsOf(drawn, GREY)} onPaint={paint} />
      </div>
      <div class="actions">
        <Button text="Clear" class="quiet" onClick={() => put(data.fill(0, begin, begin + size))} />
        <Check label="Erase" checked={erases} onCheck={setErases} />
        <Check label="Ask while I draw" checked={live} onCheck={setLive} />
      </div>
    </div>
  );
}
