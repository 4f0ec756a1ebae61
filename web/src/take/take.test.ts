/** Answers as files, and what they cost. */

import { create } from "@bufbuild/protobuf";
import { HookPoint, type Inspection, type Question, tensor, toMessage } from "@cutaway/client";
import { InspectResponseSchema } from "@cutaway/contract/inspection_pb";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { unzipSync } from "fflate";
import { describe, expect, it } from "vitest";
import { requestFor } from "../ask/methods.js";
import { companyText, stagesOf, weights } from "../cost/CostView.js";
import { emptyDraft } from "../state/draft.js";
import { npzFile, storedFile } from "./files.js";

const QUESTION: Question = {
  ...emptyDraft("digits"),
  inputs: { image: tensor(Float32Array.of(0.5, 1), [1, 2]) },
  captures: ["conv1"],
  attributions: [requestFor("layerGradCam", { inputs: [] }, "it's")],
  target: { kind: { case: "classIndex", value: { indices: [7n] } } },
  inputGradients: true,
};

const OUTPUT = tensor(Float32Array.of(1, 2), [1, 2]);
const CONV1 = tensor(Float32Array.of(3), [1, 1]);
const REPLY: Inspection = {
  predictions: { output: OUTPUT },
  classes: [],
  captured: [],
  captures: { "conv1@output": CONV1 },
  inputGradients: {},
  parameterGradients: {},
  attributions: [],
  message: create(InspectResponseSchema, {
    timings: { queueMs: 1, forwardMs: 2, checkMs: 4 },
    predictions: { outputs: [{ name: "output", tensor: toMessage(OUTPUT) }] },
    captures: [{ module: "conv1", point: HookPoint.OUTPUT, calls: [{ leaves: [{ tensor: toMessage(CONV1) }] }] }],
    attributions: [1, 2].map(() => ({ method: "LRP", values: [{ name: "image", tensor: toMessage(CONV1) }] })),
  }),
};
const ASKED = {
  model: create(ModelDetailSchema),
  question: QUESTION,
  reply: REPLY,
  when: new Date(0),
  whole: true,
  milliseconds: 10,
};

describe("files", () => {
  it("hold every array by its name", () => {
    expect(Object.keys(unzipSync(npzFile(ASKED)))).toEqual([
      "output.npy",
      "capture:conv1@output.npy",
      "attribution:lrp:image.npy",
      "attribution:lrp#1:image.npy",
    ]);
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
    expect(stages.map(({ begin }) => begin)).toEqual([0, 1, 1, 3, 3, 3, 7, 7, 7]);
    expect(stages.at(-1)?.value).toBe(3);
    expect(weights(REPLY)).toEqual([
      { name: "Predictions", value: 8 },
      { name: "Captures", value: 4 },
    ]);
  });
});
