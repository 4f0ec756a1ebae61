/** Influence: which training rows made this prediction? */

import { fromMessage, type Tensor, toMessage } from "@cutaway/client";
import { InfluenceMethod as Method, type InfluenceResult } from "@cutaway/contract/inspection_pb";
import { useState } from "preact/hooks";
import { elements, fromNpy } from "../ask/arrays.js";
import { Checks } from "../explanations/Explanation.js";
import { partOf } from "../measures/index.js";
import { askedParts, type Draft, elementOf, exampleOf, type ViewProps } from "../state/index.js";
import { comparedIn, FileButton, Select, short, TextField } from "../ui/index.js";
import { Costed } from "./Costed.js";
import { Row } from "./rows.js";

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

/** Asks for training rows of a packaged data set, or of a file, and shows those that helped and harmed most. */
export function Influence({ asked, row, ask }: ViewProps): preact.JSX.Element {
  const sets = asked.model.dataSets.map(({ name, rows }) => [name, `${name} (${rows} rows)`] as const);
  const [method, setMethod] = useState<Method>(Method.TRACIN);
  const [set, setSet] = useState(asked.model.dataSets.find(({ labelled }) => labelled)?.name ?? "");
  const [layer, setLayer] = useState("");
  const [labels, setLabels] = useState("");
  const [file, setFile] = useState<Readonly<{ text: string; tensor?: Tensor }>>({ text: "Open rows (NPY)" });
  const open = async ([given]: readonly File[]): Promise<void> => {
    try {
      const bytes = (await given?.arrayBuffer()) ?? new ArrayBuffer();
      const tensor = fromNpy(bytes, asked.model.inputs[0]?.dataType ?? 0);
      setFile({ text: `${given?.name ?? ""}, ${tensor.shape[0] ?? 0} rows`, tensor });
    } catch (failure) {
      setFile({ text: (failure as Error).message });
    }
  };
  const parts = (): Partial<Draft> => {
    const tensors = file.tensor && { "": toMessage(file.tensor) };
    const own = set || LIKENESS.includes(method) ? [] : (labels.match(/\d+/g) ?? []).map(BigInt);
    const training = set ? { dataSet: set } : tensors ? { tensors } : {};
    return { influence: { training, labels: own, method, layer: layer.trim() } };
  };
  return (
    <>
      <Costed {...{ asked, ask, parts }} label="Find the rows">
        <Select label="Compared by" of={METHODS} value={method} onChoose={setMethod} />
        <Select label="Training rows" of={[...sets, ["", "from a file"]]} value={set} onChoose={setSet} />
        {!set && (
          <FileButton accept=".npy" onOpen={(files) => void open(files)}>
            {file.text}
          </FileButton>
        )}
        {!set && <TextField label="Their classes, as numbers" value={labels} onText={setLabels} />}
        <TextField label="Layer" class="mono" value={layer} onText={setLayer} />
      </Costed>
      {asked.reply.message.influence && <Found {...{ asked, row }} found={asked.reply.message.influence} />}
    </>
  );
}

type FoundProps = Readonly<Pick<ViewProps, "asked" | "row"> & { found: InfluenceResult }>;

/** Shows the rows of one example, the first most of all. */
function Found({ asked, row, found }: FoundProps): preact.JSX.Element {
  const own = found.selfInfluence ? elements(fromMessage(found.selfInfluence)) : [];
  const suspects = own.map((score, number) => [number, score] as const).sort(([, one], [, other]) => other - one);
  const alike = LIKENESS.includes(askedParts(asked.question).influence?.method ?? Method.TRACIN);
  const kinds = [
    [alike ? "Most alike" : "They helped", found.helpful, found.helpfulScores],
    [alike ? "Least alike" : "They harmed", found.harmful, found.harmfulScores],
  ] as const;
  const lists = kinds.map(([title, ...pair]) => {
    const [numbers = [], scores = []] = pair.map((each) => each && exampleOf(asked, fromMessage(each), row).values);
    return [title, Array.from(numbers, (number, at) => [number, scores[at] ?? Number.NaN] as const)] as const;
  });
  const all = [
    ...lists,
    ["Of most weight to themselves: are their labels right?", suspects.slice(0, MOST_SUSPECTS)],
  ] as const;
  return (
    <>
      {all.map(([title, rows]) => rows.length > 0 && <Rows key={title} {...{ asked, title, rows }} />)}
      <Checks compared={comparedIn({ checks: found.check ? [found.check] : [] }, row)} />
    </>
  );
}

type RowsProps = Readonly<Pick<ViewProps, "asked"> & { title: string; rows: readonly (readonly [number, number])[] }>;

/** Shows rows with their scores; also pictures or numbers where the question has the rows. */
function Rows({ asked, title, rows }: RowsProps): preact.JSX.Element {
  const { training, labels = [] } = askedParts(asked.question).influence ?? {};
  const tensors = Object.values(training?.tensors ?? {}).map(fromMessage);
  const names = asked.reply.message.featureNames[0]?.names ?? [];
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <ol class="training">
        {rows.map(([number, score]) => (
          <li key={number}>
            {tensors.map((tensor, at) => {
              const part = partOf(tensor, number, Number(tensor.shape[0]));
              return <Row key={at} label={`row ${number}`} {...{ part, names }} />;
            })}
            <span>row {number}</span>
            {labels[number] !== undefined && <bdi>{elementOf(asked, Number(labels[number])).name}</bdi>}
            <span class="muted">{short(score)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
