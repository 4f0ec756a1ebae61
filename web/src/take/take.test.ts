/** Questions in other languages, and answers as files. */

import { create } from "@bufbuild/protobuf";
import { unzipSync } from "fflate";
import { describe, expect, it } from "vitest";
import { HookPoint, type Inspection, type Question, tensor } from "@cutaway/client";
import { InspectResponseSchema } from "@cutaway/contract/inspection_pb";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { requestFor } from "../ask/methods.js";
import { editOf } from "../edits/edit.js";
import { companyText, stagesOf, weights } from "../cost/CostView.js";
import { emptyDraft } from "../state/draft.js";
import { curlOf, typescriptOf } from "./contract.js";
import { npzFile, storedFile } from "./files.js";
import { jobOf } from "./job.js";
import { plainOf } from "./plain.js";
import { pythonOf } from "./python.js";

const SERVER = { url: new URL("http://127.0.0.1:8080/"), hasToken: true, version: "1.0" };
const QUESTION: Question = {
  ...emptyDraft("digits"),
  inputs: { image: tensor(Float32Array.of(0.5, 1), [1, 2]) },
  captures: ["conv1"],
  attributions: [requestFor("layerGradCam", { inputs: [] }, "it's")],
  target: { kind: { case: "classIndex", value: { indices: [7n] } } },
  inputGradients: true,
};

describe("programs", () => {
  it("ask the same in Python", () => {
    const program = pythonOf(QUESTION, SERVER);
    expect(program).toContain('ca.Client("127.0.0.1:8080", transport="connect", token=os.environ["CUTAWAY_TOKEN"])');
    expect(program).toContain("input0 = np.array([0.5, 1], np.float32).reshape(1, 2)");
    expect(program).toContain('captures=["conv1"]');
    expect(program).toContain('attributions=[ca.LayerGradCam(layer="it\'s")]');
    expect(program).toContain("target=7");
  });

  it("name places and points as Python's client takes them", () => {
    const points = [HookPoint.OUTPUT, HookPoint.GRAD_OUTPUT];
    const captures: Question["captures"] = [
      { where: { case: "op", value: ":add#0" }, points: [HookPoint.GRAD_OUTPUT] },
      { where: { case: "module", value: "conv1" }, points },
      { where: { case: "parameter", value: "**" } },
    ];
    const program = pythonOf({ ...QUESTION, captures }, SERVER);
    expect(program).toContain('ca.Capture(op=":add#0", at="grad_output")');
    expect(program).toContain('ca.Capture("conv1", at=("output", "grad_output"))');
    expect(program).toContain('ca.Capture(parameter="**")');
    expect(jobOf({ ...QUESTION, captures }, SERVER)).toContain(
      '    - {"module":"conv1","at":["output","grad_output"]}',
    );
  });

  it("have edits as Python and a job have them", () => {
    const place = { address: "conv1", call: 1, path: "[0]" };
    const edits = [editOf({ place, verb: "add", amount: -1.5, at: [undefined, 3] })];
    const edited = { ...QUESTION, edits, compare: true };
    expect(pythonOf(edited, SERVER)).toContain(
      'edits=[ca.Add(module="conv1", call=1, path="[0]", addend=-1.5, slices=(ca.Slice(2, 3, 4),))],\n        compare=True',
    );
    expect(jobOf(edited, SERVER)).toContain(
      '    - {"edit":"add","module":"conv1","call":1,"path":"[0]","addend":-1.5,"slices":[{"axis":2,"start":3,"stop":4}]}',
    );
  });

  it("fall back to the contract where Python has no plain word here", () => {
    const edited = { ...QUESTION, explainIf: { probabilityAtLeast: 0.5 } };
    expect(plainOf(edited)).toBeUndefined();
    expect(pythonOf(edited, SERVER)).toContain("json_format.Parse(file.read()");
    expect(jobOf(edited, SERVER)).toMatch(/^# This page writes no job/);
  });

  it("quote for the shell, for YAML and for TypeScript", () => {
    expect(curlOf(QUESTION, SERVER)).toContain(String.raw`it'\''s`);
    expect(jobOf(QUESTION, SERVER)).toContain('    - {"method":"layer_grad_cam","layer":"it\'s"}');
    expect(jobOf(QUESTION, SERVER)).toContain("target: 7");
    expect(typescriptOf(QUESTION, SERVER)).toContain('"layer": "it\'s"');
    expect(typescriptOf(QUESTION, SERVER)).toContain("tensor(Float32Array.from([0.5, 1]), [1, 2], DataType.FLOAT32)");
  });
});

const REPLY: Inspection = {
  predictions: { output: tensor(Float32Array.of(1, 2), [1, 2]) },
  classes: [],
  captured: [],
  captures: { "conv1@output": tensor(Float32Array.of(3), [1, 1]) },
  inputGradients: {},
  parameterGradients: {},
  attributions: [],
  message: create(InspectResponseSchema, { timings: { queueMs: 1, forwardMs: 2, checkMs: 4 } }),
};
const ASKED = {
  model: create(ModelDetailSchema),
  question: QUESTION,
  reply: REPLY,
  when: new Date(0),
  milliseconds: 10,
};

describe("files", () => {
  it("hold every array by its name", () => {
    expect(Object.keys(unzipSync(npzFile(ASKED)))).toEqual(["output.npy", "capture:conv1@output.npy"]);
  });

  it("hold question and answer, with sums", () => {
    const files = unzipSync(storedFile(ASKED));
    expect(Object.keys(files)).toEqual(["manifest.json", "request.binpb", "reply.binpb"]);
    const manifest = JSON.parse(new TextDecoder().decode(files["manifest.json"])) as {
      members: Record<string, { sha256: string }>;
    };
    expect(manifest.members["request.binpb"]?.sha256).toMatch(/^[0-9a-f]{64}$/);
  });
});

describe("cost", () => {
  it("says how many requests were in the pass", () => {
    expect([0, 3].map(companyText)).toEqual(["this one alone", "4, this one included"]);
  });

  it("puts stages behind one another, and what the server does not see at the end", () => {
    const stages = stagesOf(REPLY, 10);
    expect(stages.map(({ begin }) => begin)).toEqual([0, 1, 1, 3, 3, 3, 7, 7]);
    expect(stages.at(-1)?.value).toBe(3);
    expect(weights(REPLY)).toEqual([
      { name: "Predictions", value: 8 },
      { name: "Captures", value: 4 },
    ]);
  });
});
