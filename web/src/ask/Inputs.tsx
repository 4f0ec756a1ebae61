/** The input, in the ways that the model's declaration allows. */

import { useState } from "preact/hooks";
import type { ModelDetail, Tensor } from "@cutaway/client";
import { Button, Choice } from "../ui/controls.js";
import { alter, draft } from "../state/asking.js";
import { zeros } from "./arrays.js";
import { Drawing } from "./Drawing.js";
import { Files } from "./Files.js";
import { Numbers } from "./Numbers.js";
import { TableRow } from "./TableRow.js";
import { exampleOf } from "./start.js";
import { Texts } from "./Texts.js";
import { type InputSpec, type TensorWay, tensorWaysOf, type Way, waysOf } from "./ways.js";

const NAMES: Readonly<Record<Way | TensorWay, string>> = {
  files: "File",
  text: "Text",
  tensors: "Tensors",
  draw: "Draw",
  table: "Table row",
  numbers: "Numbers",
};

/** Lets a person give the input. */
export function Inputs({ detail }: { detail: ModelDetail }): preact.JSX.Element {
  const ways = waysOf(detail);
  const given = draft.value.inputs;
  const [picked, setPicked] = useState<{ way: Way; given: typeof given } | undefined>(undefined);
  const pick = (chosen: Way): void => setPicked({ way: chosen, given });
  const found = Array.isArray(given) ? ways.find((each) => each !== "tensors") : given ? "tensors" : undefined;
  const way = (picked?.given === given ? picked?.way : undefined) ?? found ?? ways[0] ?? "tensors";
  const required = detail.inputs.filter(({ optional }) => !optional);
  const drawn = required.length === 1 && required[0] && tensorWaysOf(required[0])[0] === "draw";
  const names = drawn ? { ...NAMES, tensors: "Draw or numbers" } : NAMES;
  return (
    <>
      {detail.example.length > 0 && (
        <Button
          text="Use the model’s example"
          class="quiet example"
          onClick={() => alter({ inputs: exampleOf(detail) })}
        />
      )}
      {ways.length > 1 && <Choice label="Give the input as" of={ways} names={names} value={way} onChoose={pick} />}
      {way === "text" && <Texts />}
      {way === "files" && <Files mediaTypes={detail.mediaTypes} />}
      {way === "tensors" && detail.inputs.map((spec) => <OneInput key={spec.name} spec={spec} inputs={required} />)}
    </>
  );
}

/** One forward argument. */
function OneInput({ spec, inputs }: { spec: InputSpec; inputs: readonly InputSpec[] }): preact.JSX.Element {
  const ways = tensorWaysOf(spec);
  const [way, pick] = useState<TensorWay>(ways[0] ?? "numbers");
  const given = draft.value.inputs;
  const tensors = given && !Array.isArray(given) ? (given as Readonly<Record<string, Tensor>>) : undefined;
  const own = tensors?.[spec.name];
  const put = (value: Tensor | undefined): void => {
    const start = tensors ?? Object.fromEntries(inputs.map((each) => [each.name, zeros(each)] as const));
    const { [spec.name]: _, ...others } = start;
    alter({ inputs: value ? { ...start, [spec.name]: value } : others });
  };
  return (
    <fieldset class="one-input">
      <legend>
        <bdi class="mono">{spec.name}</bdi>
        {spec.optional && <span class="muted"> may be left out</span>}
        {spec.optional && own && <Button text="Leave it out" class="quiet" onClick={() => put(undefined)} />}
      </legend>
      {ways.length > 1 && <Choice label={`Give ${spec.name} as`} of={ways} names={NAMES} value={way} onChoose={pick} />}
      {!own && !spec.optional && <p class="muted small">Nothing was given yet.</p>}
      {way === "draw" && <Drawing spec={spec} value={own} onChange={put} />}
      {way === "table" && <TableRow spec={spec} value={own} onChange={put} />}
      {way === "numbers" && <Numbers spec={spec} value={own} onChange={put} />}
    </fieldset>
  );
}
