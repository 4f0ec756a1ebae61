/** The input, in the ways that the model's declaration allows. */

import { byName, DataType, type ModelDetail, type Tensor } from "@cutaway/client";
import { useState } from "preact/hooks";
import { useFile } from "../explanations/Values.js";
import { Canvas, Picture } from "../pictures/Picture.js";
import { GREY, pixelsOf } from "../pictures/colours.js";
import { alter, ask, draft, examplesIn, type FileExample, filesIn, model, row } from "../state/index.js";
import { Button, Check, Choice, FileButton, fits, NumberField, shapeText, Slider, useFields } from "../ui/index.js";
import { elements, fromLists, fromNpy, numbers, rangeOf, toLists, zeros } from "./arrays.js";
import { exampleOf } from "./start.js";
import { type InputSpec, type TensorWay, tensorWaysOf, type Way, waysOf } from "./ways.js";

const NAMES: Readonly<Record<Way | TensorWay, string>> = {
  files: "File",
  text: "Text",
  tensors: "Tensors",
  draw: "Draw",
  table: "Table row",
  numbers: "Numbers",
};

/** Returns the words of some ways, in their order. */
function among<T extends string>(ways: readonly T[], names: Readonly<Record<T, string>>): Partial<Record<T, string>> {
  return Object.fromEntries(ways.map((each) => [each, names[each]])) as Partial<Record<T, string>>;
}

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
  const takeExample = (): void => alter({ inputs: exampleOf(detail) });
  const names = among(ways, drawn ? { ...NAMES, tensors: "Draw or numbers" } : NAMES);
  return (
    <>
      {detail.example.length > 0 && (
        <Button text="Use the model’s example" class="quiet example" onClick={takeExample} />
      )}
      {ways.length > 1 && <Choice label="Give the input as" of={names} value={way} onChange={pick} />}
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
      {ways.length > 1 && <Choice label={`Give ${spec.name} as`} of={among(ways, NAMES)} value={way} onChange={pick} />}
      {!own && !spec.optional && <p class="muted small">Nothing was given yet.</p>}
      {way === "draw" && <Drawing spec={spec} value={own} onChange={put} />}
      {way === "table" && <TableRow spec={spec} value={own} onChange={put} />}
      {way === "numbers" && <Numbers spec={spec} value={own} onChange={put} />}
    </fieldset>
  );
}

/** An input, and what a person gave; `onChange` takes what they give next, or undefined where that is no tensor. */
type TensorProps = Readonly<{ spec: InputSpec; value: Tensor | undefined; onChange: (value?: Tensor) => void }>;

/** Lets a person draw, with a pointer or with the arrow keys and the space bar, which also takes away. */
function Drawing({ spec, value = zeros(spec), onChange }: TensorProps): preact.JSX.Element {
  const [{ live, erases }, field] = useFields({ live: false, erases: false });
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
        <Check label="Erase" {...field("erases")} />
        <Check label="Ask while I draw" {...field("live")} />
      </div>
    </div>
  );
}

/** Takes a number for each feature of the example that is shown; others stay as they are. */
function TableRow({ spec, value = zeros(spec), onChange }: TensorProps): preact.JSX.Element {
  const [rows = 1, width = 0] = value.shape;
  const begin = Math.min(row.value, rows - 1) * width;
  const all = elements(value);
  const put = (at: number, changed: readonly number[]): void =>
    onChange(numbers(all.toSpliced(begin + at, changed.length, ...changed), value.shape, spec.dataType));
  const paste = (event: ClipboardEvent, at: number): void => {
    const pasted = (event.clipboardData?.getData("text").match(/[^\s,;]+/g) ?? []).map(Number);
    if (pasted.length < 2 || !pasted.every((each) => fits(each, rangeOf(spec.dataType)))) return;
    event.preventDefault();
    put(at, pasted.slice(0, width - at));
  };
  const usual = byName(model.value?.example ?? [])[spec.name]?.data ?? [];
  const range = rangeOf(spec.dataType);
  const field = (each: number, at: number): preact.JSX.Element => {
    const name = spec.featureNames[at] ?? `feature ${at}`;
    const middle = Number(usual[at] ?? 0);
    const reach = Math.max(2 * Math.abs(middle), 1);
    const least = Math.max(range.least, Math.min(middle - reach, each));
    const slides = { least, most: Math.max(middle + reach, each), step: range.whole ? 1 : reach / 100, value: each };
    const set = (number = 0): void => put(at, [number]);
    return (
      <div key={`${begin} ${at}`} onPaste={(event) => paste(event, at)}>
        <NumberField label={<bdi>{name}</bdi>} value={each} {...range} onChange={set} />
        <Slider label={<span class="hidden">{name}</span>} {...slides} onChange={set} onDone={() => void ask()} />
      </div>
    );
  };
  return <div class="features">{all.slice(begin, begin + width).map(field)}</div>;
}

/** Takes texts. */
function Texts(): preact.JSX.Element {
  const given = examplesIn(draft.value).map((each) => (typeof each === "string" ? each : ""));
  const texts = given.length ? given : [""];
  const put = (changed: readonly string[]): void => alter({ inputs: changed });
  return (
    <div class="texts">
      {texts.map((text, index) => (
        <label key={index}>
          <span class={texts.length > 1 ? "muted small" : "hidden"}>Text {index + 1}</span>
          <textarea
            rows={3}
            value={text}
            placeholder="Type or paste a text"
            onInput={({ currentTarget }) => put(texts.with(index, currentTarget.value))}
          />
        </label>
      ))}
      <div class="actions">
        <Button text="Add a text" class="quiet" onClick={() => put([...texts, " "])} />
        {texts.length > 1 && <Button text="Remove the last" class="quiet" onClick={() => put(texts.slice(0, -1))} />}
      </div>
    </div>
  );
}

/** Takes files, each an example. */
function Files({ mediaTypes }: { mediaTypes: readonly string[] }): preact.JSX.Element {
  const read = async (file: File): Promise<FileExample> => {
    return { data: new Uint8Array(await file.arrayBuffer()), mediaType: file.type };
  };
  const put = async (list: FileList | undefined | null): Promise<void> => {
    const examples = [...(list ?? [])].map(read);
    if (examples.length) alter({ inputs: await Promise.all(examples) });
  };
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    if (event.type === "drop") void put(event.dataTransfer?.files);
  };
  const accept = mediaTypes.join(",");
  return (
    <div class="files" onDragOver={drop} onDrop={drop} onPaste={({ clipboardData }) => void put(clipboardData?.files)}>
      <label>
        <span>Drop files here, paste one, or choose: each is an example</span>
        <input type="file" multiple accept={accept} onChange={({ currentTarget }) => void put(currentTarget.files)} />
      </label>
      <ul>
        {filesIn(draft.value).map((file, index) => (
          <li key={index}>
            {file.mediaType.startsWith("image/") && <FilePreview file={file} number={index + 1} />}
            <span class="muted small">
              {file.mediaType || "file"}, {file.data.length.toLocaleString("en")} bytes
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function FilePreview({ file, number }: { file: FileExample; number: number }): preact.JSX.Element {
  const image = useFile(file);
  return <>{image && <Canvas {...image} role="img" aria-label={`Example ${number}`} />}</>;
}

/** What a person gave: a text, unless it was a file; a tensor, unless it is none; and why it is none. */
type Given = Readonly<{ text: string | undefined; value: Tensor | undefined; wrong: string }>;

/** A tensor with more numbers is not shown as lists. */
const MOST_NUMBERS = 1024;

/** Takes lists or a file, the batch as the outermost axis; gives undefined where a person has typed what is no tensor. */
export function Numbers({ spec, value, onChange }: TensorProps): preact.JSX.Element {
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
  const open = (bytes: ArrayBuffer): void => take(() => fromNpy(bytes, spec.dataType));
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
        <FileButton accept=".npy" onOpen={([file]) => void file?.arrayBuffer().then(open)}>
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
