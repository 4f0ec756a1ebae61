/** The rows of a job that a person chose to see, page by page. */

import { isImage, pictureOf } from "../explanations/Values.js";
import { sizeOf } from "../measures/index.js";
import { Canvas } from "../pictures/Picture.js";
import { Paged, percent, signed, Table, VerdictBadge } from "../ui/index.js";
import { type Column, columnsOf, type JobFolder, measuredOf, sizesOf, tensorIn, useCells } from "./folder.js";
import { chosen, shown } from "./query.js";
import type { JobRow } from "./rows.js";

const PAGE = 25;
const LARGEST_PREVIEW = 4096;
const MOST_TOKENS = 16;

/** Shows the rows that a person chose to see, each with its input where that is small. */
export function RowTable({ folder }: { folder: JobFolder }): preact.JSX.Element {
  const preview = previewOf(folder);
  const labelled = columnsOf(folder, ["label"]).length > 0;
  const measured = measuredOf(folder).length > 0;
  const beside = measured ? columnsOf(folder, ["residual"]).length > 0 && "Residual" : "Probability";
  const cellsOf = (row: JobRow): preact.ComponentChildren[] => [
    <button class="quiet" aria-pressed={row === chosen.value} onClick={() => (chosen.value = row)}>
      {shortened(row.id || `${row.number}`)}
    </button>,
    ...(preview ? [<Preview key={row.number} row={row} column={preview} />] : []),
    ...(labelled ? [<div class={measured ? "number" : ""}>{shortened(row.label)}</div>] : []),
    <div class={row.wrong ? "wrong" : measured ? "number" : ""}>
      {shortened(row.prediction)}
      {row.wrong && <span class="hidden"> is not the label</span>}
    </div>,
    ...(beside ? [<div class="number">{besideOf(row)}</div>] : []),
    row.problem ? <bdi class="bad">{row.problem}</bdi> : <VerdictBadge verdict={row.verdict} />,
  ];
  const heads = ["Row", preview && "Input", labelled && "Label", "Prediction", beside, "Checks"];
  return (
    <Paged of={shown.value} page={PAGE}>
      {(page) => (
        <Table
          kind="rows paragraphs"
          heads={heads.filter((head) => typeof head === "string")}
          rows={page.map(cellsOf)}
        />
      )}
    </Paged>
  );
}

function besideOf({ residual, probability }: JobRow): string {
  if (residual !== undefined) return signed(residual);
  return probability === undefined ? "" : percent(probability);
}

function shortened(text: string): preact.JSX.Element {
  return <bdi class="short">{text}</bdi>;
}

/** Returns the column that shows what a row is: tokens, a small image, or a text. */
function previewOf(folder: JobFolder): Column | undefined {
  return columnsOf(folder, ["tokens", "input"]).find((column) => {
    const shape = sizesOf(column);
    const isSmallImage = isImage({ shape }) && sizeOf(shape) <= LARGEST_PREVIEW;
    return column["kind"] === "tokens" || column["media_type"]?.startsWith("text/") || isSmallImage;
  });
}

function Preview({ row, column }: { row: JobRow; column: Column }): preact.JSX.Element | null {
  const { cells = {} } = useCells(row.line, [column]);
  const cell = cells[column.name];
  const words = [cell].flat().slice(0, MOST_TOKENS);
  if (typeof words[0] === "string") return <bdi class="preview">{words.join(" ")}</bdi>;
  const part = tensorIn(cells, column);
  if (part === undefined || !isImage(part)) return null;
  return <Canvas class="preview" aria-hidden="true" {...pictureOf(part)} />;
}
