/** The rows of a job, a page at a time. */

import { useState } from "preact/hooks";
import { Heads } from "../ui/parts.js";
import { Pager } from "../ui/controls.js";
import { isImage, pictureOf } from "../explanations/Values.js";
import { VerdictBadge } from "../ui/verdicts.js";
import { Canvas } from "../pictures/Canvas.js";
import { percent, signed } from "../ui/text.js";
import { sizeOf } from "../measures/numbers.js";
import { type Column, columnsOf, type JobFolder, measuredOf, sizesOf, tensorIn, useCells } from "./folder.js";
import { chosen, type JobRow, shown } from "./rows.js";

const PAGE = 25;
const LARGEST_PREVIEW = 4096;
const MOST_TOKENS = 16;

/** Shows the rows that a person chose to see, each with its input where that is small. */
export function RowTable({ folder }: { folder: JobFolder }): preact.JSX.Element {
  const [first, setFirst] = useState(0);
  const preview = previewOf(folder);
  const labelled = columnsOf(folder, ["label"]).length > 0;
  const measured = measuredOf(folder).length > 0;
  const residual = columnsOf(folder, ["residual"]).length > 0;
  const beside = measured ? residual && "Residual" : "Probability";
  const titles = ["Row", preview && "Input", labelled && "Label", "Prediction", beside, "Checks"];
  return (
    <>
      <div class="wide">
        <table class="rows">
          <Heads of={titles.filter((title) => typeof title === "string")} />
          <tbody>
            {shown.value.slice(first, first + PAGE).map((row) => (
              <tr key={row.number} class={row === chosen.value ? "chosen" : ""}>
                <th scope="row">
                  <button class="quiet" aria-pressed={row === chosen.value} onClick={() => (chosen.value = row)}>
                    {shortened(row.id || `${row.number}`)}
                  </button>
                </th>
                {preview && (
                  <td>
                    <Preview row={row} column={preview} />
                  </td>
                )}
                {labelled && <td class={measured ? "number" : ""}>{shortened(row.label)}</td>}
                <td class={row.wrong ? "wrong" : measured ? "number" : ""}>
                  {shortened(row.prediction)}
                  {row.wrong && <span class="hidden"> is not the label</span>}
                </td>
                {beside && (
                  <td class="number">
                    {row.residual !== undefined && signed(row.residual)}
                    {row.probability !== undefined && percent(row.probability)}
                  </td>
                )}
                <td>{row.problem ? <bdi class="bad">{row.problem}</bdi> : <VerdictBadge verdict={row.verdict} />}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Pager first={first} page={PAGE} count={shown.value.length} onTurn={setFirst} />
    </>
  );
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
