/** The live model beside what a job stored about a row. */

import { useState } from "preact/hooks";
import { said } from "../ask/History.js";
import { since } from "../state/asking.js";
import type { Asked } from "../state/asked.js";
import { go } from "../state/route.js";
import { columnsOf, type JobFolder } from "./folder.js";
import { askLive, servedOf } from "./live.js";
import type { Row } from "./rows.js";

/** Asks it, and leads to what is inside. */
export function Live({ folder, row }: { folder: JobFolder; row: Row }): preact.JSX.Element {
  const { manifest } = folder;
  const [answer, setAnswer] = useState<Asked | undefined>(undefined);
  if (servedOf(manifest) === undefined) {
    return <p class="muted">This server has no model {manifest.model}: it cannot be asked about the row.</p>;
  }
  if (columnsOf(manifest, ["input"]).length === 0) {
    return (
      <p class="muted">
        The job kept no inputs, so the model cannot be asked about the row: run it with{" "}
        <code>output: {"{keep_inputs: true}"}</code>.
      </p>
    );
  }
  if (row.problem) return <p class="muted">The job could not use this row, and kept no input of it.</p>;
  const ask = async (): Promise<void> => setAnswer(await askLive(folder, row.line));
  const same = answer?.reply.message.provenance?.weightsSha256 === manifest.weights_sha256;
  return (
    <div class="actions">
      <button class="primary" disabled={since.value !== undefined} onClick={() => void ask()}>
        Ask the live model
      </button>
      {answer && (
        <>
          <span role="status">
            It says <bdi class="short">{said(answer)}</bdi>
            {same ? ", with the weights of the job." : ". Its weights are not those of the job."}
          </span>
          <button onClick={() => go("explanations")}>Look inside</button>
        </>
      )}
    </div>
  );
}
