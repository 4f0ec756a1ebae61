/** The rows of a job, a page at a time. */

import { useState } from "preact/hooks";
import { Heads } from "../app/parts.js";
import { Pager } from "../app/controls.js";
import { isImage, pictureOf } from "../explanations/backgrounds.js";
import { VerdictBadge, shownAs } from "../explanations/verdicts.js";
import { percent } from "../pictures/text.js";
import { sizeOf } from "../measures/numbers.js";
import { columnsOf, type JobFolder, tensorIn } from "./folder.js";
import type { Row } from "./rows.js";
import { useCells } from "./useCells.js";

const PAGE = 25;
const LARGEST_PREVIEW = 4096;
const MOST_TOKENS = 16;

interface Props {
  readonly folder: JobFolder;
  readonly rows: readonly Row[];
  readonly chosen: Row | undefined;
  readonly onChoose: (row: Row) => void;
}

/** Shows rows, each with its input where that is small. */
export function RowTable({ folder, rows, chosen, onChoose }: Props): preact.JSX.Element {
  const [first, setFirst] = useState(0);
  const preview = previewOf(folder);
  const labelled = columnsOf(folder.manifest, ["label"]).length > 0;
  const titles = ["Row", preview && "Input", labelled && "Label", "Prediction", "Probability", "Checks"];
  return (
    <>
      <div class="wide">
        <table class="rows">
          <Heads of={titles.filter((each) => typeof each === "string")} />
          <tbody>
            {rows.slice(first, first + PAGE).map((row) => (
              <tr key={row.number} class={row === chosen ? "chosen" : ""}>
                <th scope="row">
                  <button class="quiet" aria-pressed={row === chosen} onClick={() => onChoose(row)}>
                    <bdi class="short">{row.id || row.number}</bdi>
                  </button>
                </th>
                {preview && (
                  <td>
                    <Preview folder={folder} row={row} column={preview} />
                  </td>
                )}
                {labelled && (
                  <td>
                    <bdi class="short">{row.label}</bdi>
                  </td>
                )}
                <td class={row.wrong ? "wrong" : ""}>
                  <bdi class="short">{row.prediction}</bdi>
                  {row.wrong && <span class="hidden"> is not the label</span>}
                </td>
                <td class="number">{row.probability === undefined ? "" : percent(row.probability)}</td>
                <td>
                  {row.problem ? <bdi class="bad">{row.problem}</bdi> : <VerdictBadge shown={shownAs(row.verdict)} />}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <Pager first={first} page={PAGE} count={rows.length} onTurn={setFirst} />
    </>
  );
}

/** Returns the column that shows what a row is: tokens, a small image, or a text. */
function previewOf({ manifest }: JobFolder): string | undefined {
  return columnsOf(manifest, ["tokens", "input"]).find((name) => {
    const about = manifest.columns[name] ?? {};
    const shape = (about["shape"] ?? "").split(",").map(Number);
    return about["kind"] === "tokens" || about["media_type"]?.startsWith("text/") || isSmallImage(shape);
  });
}

function isSmallImage(shape: readonly number[]): boolean {
  return isImage({ shape }) && sizeOf(shape) <= LARGEST_PREVIEW;
}

function Preview({ folder, row, column }: { folder: JobFolder; row: Row; column: string }): preact.JSX.Element | null {
  const cell = useCells(row.line, [column]).cells?.[column];
  if (typeof cell === "string") return <bdi class="preview">{cell}</bdi>;
  if (Array.isArray(cell) && typeof cell[0] === "string") {
    return <bdi class="preview">{cell.slice(0, MOST_TOKENS).join(" ")}</bdi>;
  }
  const part = tensorIn(cell, folder.manifest.columns[column] ?? {});
  if (part === undefined || !isImage(part)) return null;
  const { pixels, width, height } = pictureOf(part);
  return (
    <canvas
      class="preview"
      aria-hidden="true"
      width={width}
      height={height}
      ref={(drawn) => drawn?.getContext("2d")?.putImageData(new ImageData(pixels, width, height), 0, 0)}
    />
  );
}
