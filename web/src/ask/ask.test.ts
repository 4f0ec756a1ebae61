/** Inputs, methods and predictions, as pure functions. */

import { DataType, type ModelDetail, tensor } from "@cutaway/client";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { elements, fromLists, fromNpy, toNpy } from "./arrays.js";
import { METHODS, optionOf, requestFor, withOption } from "./methods.js";
import { classBars, elementBars, softmax } from "./probabilities.js";
import { startOf } from "./start.js";
import { oneExample, tensorWaysOf, waysOf } from "./ways.js";

const detail = (init: MessageInitShape<typeof ModelDetailSchema>): ModelDetail => create(ModelDetailSchema, init);

/** numpy.save of numpy.arange(6, dtype="<f4").reshape(2, 3) */
const NPY =
  "934e554d5059010076007b276465736372273a20273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028322c2033292c207d" +
  "20".repeat(58) +
  "0a" +
  "000000000000803f0000004000004040000080400000a040";

const bytes = (hex: string): Uint8Array => Uint8Array.from(hex.match(/../g) ?? [], (each) => parseInt(each, 16));

describe("arrays", () => {
  it("reads and writes NPY files as numpy does", () => {
    const read = fromNpy(bytes(NPY));
    expect([...read.data]).toEqual([0, 1, 2, 3, 4, 5]);
    expect(read.shape).toEqual([2, 3]);
    expect(toNpy(read)).toEqual(bytes(NPY));
    expect(() => fromNpy(new Uint8Array(20))).toThrow("no NPY file");
  });

  it("reads nested lists in the type that the model takes", () => {
    const ids = fromLists("[[1, 2], [3, 4]]", DataType.INT64);
    expect([ids.shape, ids.data]).toEqual([[2, 2], BigInt64Array.of(1n, 2n, 3n, 4n)]);
    expect(elements(fromLists("[[0.5, true]]", DataType.UNSPECIFIED))).toEqual([0.5, 1]);
    expect(() => fromLists("[[1], [2, 3]]", DataType.FLOAT32)).toThrow("differ in length");
    expect(() => fromLists('[["a"]]', DataType.FLOAT32)).toThrow("numbers only");
  });
});

describe("methods", () => {
  it("are all of the contract", () => {
    expect(METHODS).toHaveLength(38);
    expect(METHODS.filter(({ of }) => of === "a neuron")).toHaveLength(9);
    expect(METHODS.find(({ field }) => field === "layerGradCam")?.options.map(({ label }) => label)).toEqual([
      "layer",
      "relu",
    ]);
  });

  it("get and lose options", () => {
    const [steps] = METHODS.find(({ field }) => field === "integratedGradients")?.options ?? [];
    if (steps === undefined) throw new Error("no option");
    const asked = withOption(requestFor("integratedGradients"), steps, "32");
    expect(asked.method).toMatchObject({ value: { path: { nSteps: 32 } } });
    expect(optionOf(asked, steps)).toBe("32");
    expect(optionOf(withOption(asked, steps, ""), steps)).toBe("");
    const neuron = METHODS.find(({ field }) => field === "neuronGradient")?.options ?? [];
    const at = neuron.reduce(
      (made, option) => withOption(made, option, option.kind === "layer" ? "conv1" : "3, 1"),
      requestFor("neuronGradient"),
    );
    expect(at.method).toMatchObject({ value: { neuron: { module: "conv1", index: { positions: [3n, 1n] } } } });
  });
});

describe("predictions", () => {
  const logits = tensor(Float32Array.of(0, 0, 0, 1, 3, 2), [2, 3]);

  it("are probabilities where there are classes", () => {
    // numpy: exp([1, 3, 2]) / sum
    const expected = [0.09003057, 0.66524096, 0.24472847];
    softmax([1, 3, 2]).forEach((each, index) => {
      expect(each).toBeCloseTo(expected[index] ?? NaN, 7);
    });
    const bars = classBars(logits, 1, detail({ labels: ["a", "b"] }), 2);
    expect(bars.map(({ label }) => label)).toEqual(["b", "2"]);
    expect(softmax([1000, 0])).toEqual([1, 0]);
  });

  it("are elements otherwise", () => {
    expect(elementBars(logits, 1, 2).map(({ value }) => value)).toEqual([1, 3]);
  });
});

describe("what a model declares", () => {
  const image = detail({
    inputs: [{ name: "image", dataType: DataType.FLOAT32, shape: [-1n, 1n, 8n, 8n] }],
    mediaTypes: ["image/png"],
  });
  const photo = detail({
    inputs: [{ name: "image", dataType: DataType.FLOAT32, shape: [-1n, 3n, 224n, 224n] }],
    mediaTypes: ["image/png"],
  });
  const text = detail({
    inputs: [{ name: "input_ids", dataType: DataType.INT64, shape: [-1n, -1n] }],
    mediaTypes: ["text/plain"],
  });
  const table = detail({ inputs: [{ name: "x", dataType: DataType.FLOAT32, shape: [-1n, 30n] }] });

  it("decides how inputs are given", () => {
    expect([image, photo, text, table].map((each) => waysOf(each)[0])).toEqual(["tensors", "files", "text", "tensors"]);
    expect([image, photo, text, table].map(({ inputs }) => inputs.map((each) => tensorWaysOf(each)[0]))).toEqual([
      ["draw"],
      ["numbers"],
      ["numbers"],
      ["table"],
    ]);
    expect(image.inputs.map(oneExample)).toEqual([[1, 1, 8, 8]]);
  });

  it("decides what is asked first", () => {
    const modules = ["Net", "Conv2d", "Conv2d", "Linear"].map((type, index) => ({
      type,
      name: index ? `m${index}` : "",
    }));
    const first = startOf({ ...image, modules: detail({ modules }).modules }, "net");
    expect(first.captures).toEqual(["m1", "m2", "m3"]);
    expect(first.attributions?.map(({ method }) => method?.case)).toEqual([
      "integratedGradients",
      "saliency",
      "layerGradCam",
    ]);
    expect(first.inputs).toBeUndefined();
    const words = detail({ inputs: text.inputs, modules: [{ name: "words", type: "Embedding" }] });
    expect(startOf(words, "net").attributions?.map(({ method }) => method?.case)).toEqual(["layerIntegratedGradients"]);
    expect(startOf(words, "net").inputGradients).toBe(false);
    // The model itself is no place inside it.
    expect(startOf({ ...table, modules: detail({ modules: [{ type: "Linear" }] }).modules }, "net").captures).toEqual(
      [],
    );
  });
});
