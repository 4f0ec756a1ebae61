/** Influence: which training rows made this prediction? */

import { fromMessage, type Question, type Tensor, toMessage } from "@cutaway/client";
import { InfluenceMethod as Method, type InfluenceResult } from "@cutaway/contract/inspection_pb";
import { descending, range, sort } from "d3-array";
import { Asking } from "../ask/Asking.js";
import { elements, fromNpy } from "../ask/arrays.js";
import { Checks } from "../explanations/Explanation.js";
import { isImage, pictureOf } from "../explanations/Values.js";
import { type Part, partOf } from "../measures/index.js";
import { Canvas } from "../pictures/Picture.js";
import { askedParts, elementOf, exampleOf, type ViewProps } from "../state/index.js";
import { FileButton, Select, short, TextField, useFields } from "../ui/index.js";

const METHODS = [
  [Method.TRACIN, "gradients (TracIn)"],
  [Method.TRACIN_FAST, "gradients of the last layer"],
  [Method.INFLUENCE_FUNCTION, "gradients through a Hessian"],
  [Method.ARNOLDI, "the same, by Arnoldi's iteration"],
  [Method.COSINE, "likeness at a layer (cosine)"],
  [Method.EUCLIDEAN, "likeness at a layer (distance)"],
] as const;
const LIKENESS: readonly Method[] = [Method.COSINE, Method.EUCLIDEAN];
const MOST_SUSPECTS = 5;

/** What a person chooses; `file` is what is said of the file, with its rows. */
interface Fields {
  readonly method: Method;
  readonly set: string;
  readonly layer: string;
  readonly labels: string;
  readonly file: Readonly<{ text: string; tensor?: Tensor }>;
}

/** Asks for training rows of a packaged data set, or of a file, and shows those that helped and harmed most. */
export function Influence({ asked, row }: ViewProps): preact.JSX.Element {
  const { dataSets, inputs } = asked.model;
  const { influence: linked } = askedParts(asked.question);
  const [{ method, set, layer, labels, file }, field] = useFields<Fields>({
    method: linked?.method || Method.TRACIN,
    set: linked?.training?.dataSet || (dataSets.find(({ labelled }) => labelled)?.name ?? ""),
    layer: linked?.layer ?? "",
    labels: "",
    file: { text: "Open rows (NPY)" },
  });
  const open = async ([given]: readonly File[]): Promise<void> => {
    const read = async (): Promise<Fields["file"]> => {
      const tensor = fromNpy((await given?.arrayBuffer()) ?? new ArrayBuffer(), inputs[0]?.dataType ?? 0);
      return { text: `${given?.name ?? ""}, ${tensor.shape[0] ?? 0} rows`, tensor };
    };
    field("file").onChange(await read().catch((failure: unknown) => ({ text: (failure as Error).message })));
  };
  const parts = (): Partial<Question> => {
    const tensors = file.tensor && { "": toMessage(file.tensor) };
    const own = set || LIKENESS.includes(method) ? [] : (labels.match(/\d+/g) ?? []).map(BigInt);
    const training = set ? { dataSet: set } : tensors ? { tensors } : {};
    return { influence: { training, labels: own, method, layer: layer.trim() } };
  };
  const sets = dataSets.map(({ name, rows }) => [name, `${name} (${rows} rows)`] as const);
  const found = asked.reply.message.influence;
  return (
    <>
      <Asking {...{ asked }} label="Find the rows" parts={parts} costly>
        <Select label="Compared by" of={METHODS} {...field("method")} />
        <Select label="Training rows" of={[...sets, ["", "from a file"]]} {...field("set")} />
        {!set && (
          <FileButton accept=".npy" onOpen={(files) => void open(files)}>
            {file.text}
          </FileButton>
        )}
        {!set && <TextField label="Their classes, as numbers" {...field("labels")} />}
        <TextField label="Layer" class="mono" {...field("layer")} />
      </Asking>
      {found && <Found {...{ asked, row, found }} />}
    </>
  );
}

type FoundProps = Readonly<ViewProps & { found: InfluenceResult }>;

/** Shows the rows of one example, the first most of all. */
function Found({ asked, row, found }: FoundProps): preact.JSX.Element {
  const { helpful, helpfulScores, harmful, harmfulScores, selfInfluence } = found;
  const alike = LIKENESS.includes(askedParts(asked.question).influence?.method ?? Method.TRACIN);
  const own = selfInfluence ? elements(fromMessage(selfInfluence)) : [];
  const suspects = sort(range(own.length), (one, other) => descending(own[one], own[other])).slice(0, MOST_SUSPECTS);
  const [helped = [], helps = [], harmed = [], harms = []] = [helpful, helpfulScores, harmful, harmfulScores].map(
    (each) => (each ? Array.from(exampleOf(asked, fromMessage(each), row).values) : []),
  );
  const suspicion = suspects.map((number) => own[number] ?? NaN);
  return (
    <>
      <Rows {...{ asked }} title={alike ? "Most alike" : "They helped"} rows={helped} scores={helps} />
      <Rows {...{ asked }} title={alike ? "Least alike" : "They harmed"} rows={harmed} scores={harms} />
      <Rows
        {...{ asked }}
        title="Of most weight to themselves: are their labels right?"
        rows={suspects}
        scores={suspicion}
      />
      <Checks checks={found.check ? [found.check] : []} row={row} />
    </>
  );
}

type RowsProps = Pick<ViewProps, "asked"> &
  Readonly<{ title: string; rows: readonly number[]; scores: readonly number[] }>;

/** Shows rows with their scores; also pictures or numbers where the question has the rows. Nothing without rows. */
function Rows({ asked, title, rows, scores }: RowsProps): preact.JSX.Element | null {
  const { training, labels = [] } = askedParts(asked.question).influence ?? {};
  const tensors = Object.values(training?.tensors ?? {}).map(fromMessage);
  const names = asked.reply.message.featureNames[0]?.names ?? [];
  if (rows.length === 0) return null;
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <ol class="training">
        {rows.map((number, at) => (
          <li key={number}>
            {tensors.map((tensor, each) => {
              const part = partOf(tensor, number, Number(tensor.shape[0]));
              return <Row key={each} label={`row ${number}`} {...{ part, names }} />;
            })}
            <span>row {number}</span>
            {labels[number] !== undefined && <bdi>{elementOf(asked, Number(labels[number])).name}</bdi>}
            <span class="muted">{short(scores[at] ?? NaN)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

const MOST_NUMBERS = 6;

type RowProps = Readonly<{ label: string; part: Part; names: readonly string[] }>;

/** Shows an example: a picture, or its first numbers. */
function Row({ label, part, names }: RowProps): preact.JSX.Element {
  if (isImage(part)) return <Canvas {...pictureOf(part)} role="img" aria-label={label} />;
  const shown = Array.from(part.values.subarray(0, MOST_NUMBERS));
  const told = shown.map((value, at) => `${names[at] ?? at} ${short(value)}`).join(", ");
  return <bdi class="small">{shown.length < part.values.length ? `${told}, …` : told}</bdi>;
}
