/** Inputs, methods and predictions, as pure functions. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { DataType, type ModelDetail, tensor } from "@cutaway/client";
import { Quadrature } from "@cutaway/contract/attribution_pb";
import { InputSpecSchema, ModelDetailSchema, ModuleSchema } from "@cutaway/contract/model_pb";
import { describe, expect, it } from "vitest";
import type { Exchange } from "../state/exchange.js";
import { elements, fromLists, fromNpy, numbers, rangeOf, toNpy } from "./arrays.js";
import { methodIn, METHODS, optionOf, optionsFor, requestFor, tensorJson, withOption } from "./methods.js";
import { barsOf, softmax } from "./probabilities.js";
import { startOf } from "./start.js";
import { oneExample, tensorWaysOf, waysOf } from "./ways.js";

const detail = (init: MessageInitShape<typeof ModelDetailSchema>): ModelDetail => create(ModelDetailSchema, init);

/** numpy.save of numpy.arange(6, dtype="<f4").reshape(2, 3) */
const NPY =
  "934e554d5059010076007b276465736372273a20273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028322c2033292c207d" +
  "20".repeat(58) +
  "0a" +
  "000000000000803f0000004000004040000080400000a040";

const bytes = (hex: string): Uint8Array<ArrayBuffer> =>
  Uint8Array.from(hex.match(/../g) ?? [], (each) => parseInt(each, 16));

describe("arrays", () => {
  it("reads and writes NPY files as numpy does", () => {
    const read = fromNpy(bytes(NPY).buffer, DataType.UNSPECIFIED);
    expect([...read.data]).toEqual([0, 1, 2, 3, 4, 5]);
    expect(read.shape).toEqual([2, 3]);
    expect(fromNpy(toNpy(read).buffer, DataType.FLOAT32)).toEqual(read);
    expect(fromNpy(bytes(NPY).buffer, DataType.FLOAT64).data).toEqual(Float64Array.of(0, 1, 2, 3, 4, 5));
    expect(() => fromNpy(new ArrayBuffer(20), DataType.FLOAT32)).toThrow("no NPY file");
  });

  it("reads nested lists in the type that the model takes", () => {
    const ids = fromLists("[[1, 2], [3, 4]]", DataType.INT64);
    expect([ids.shape, ids.data]).toEqual([[2, 2], BigInt64Array.of(1n, 2n, 3n, 4n)]);
    expect(elements(fromLists("[[0.5, true]]", DataType.UNSPECIFIED))).toEqual([0.5, 1]);
    expect(() => fromLists("[[1], [2, 3]]", DataType.FLOAT32)).toThrow("differ in length");
    expect(() => fromLists('[["a"]]', DataType.FLOAT32)).toThrow("numbers only");
    expect(() => fromLists("hello", DataType.FLOAT32)).toThrow("no list of numbers");
    expect(() => fromLists("[1e39]", DataType.FLOAT32)).toThrow("1e+39 is no float32");
    expect(() => fromLists("[1e400]", DataType.FLOAT64)).toThrow("too large");
    expect(() => fromLists("[70000]", DataType.FLOAT16)).toThrow("from -65504 to 65504");
    expect(() => fromLists("[0.5]", DataType.BOOL)).toThrow("0.5 is no bool");
    expect(rangeOf(DataType.INT8)).toEqual({ least: -128, most: 127, whole: true });
    expect(rangeOf(DataType.UINT8)).toEqual({ least: 0, most: 255, whole: true });
  });
});

describe("methods", () => {
  it("are all of the contract", () => {
    expect(METHODS).toHaveLength(38);
    expect(METHODS.filter(({ of }) => of === "a neuron")).toHaveLength(9);
    const { options = [] } = METHODS.find(({ field }) => field === "layerGradCam") ?? {};
    expect(options.map(({ label, kind }) => `${label}, ${kind}`)).toEqual([
      ...[
        "layer, layer",
        "relu, boolean",
        "channel axis, number",
        "target, json",
        "inputs, json",
        "noise: combination, choice",
      ],
      ...["noise: n samples, number", "noise: stdev, number", "metrics, json"],
      "layer path, text",
      "quality, with random weights, boolean",
    ]);
  });

  it("get and lose options", () => {
    const [, steps] = METHODS.find(({ field }) => field === "integratedGradients")?.options ?? [];
    if (steps === undefined) throw new Error("no option");
    const asked = withOption(requestFor("integratedGradients", { inputs: [] }), steps, "32");
    expect(asked.method).toMatchObject({ value: { path: { nSteps: 32 } } });
    expect(optionOf(asked, steps)).toBe("32");
    expect(optionOf(withOption(asked, steps, ""), steps)).toBe("");
  });

  it("take whole numbers as indices, and nothing else", () => {
    const [at] =
      METHODS.find(({ field }) => field === "neuronGradient")?.options.filter(({ kind }) => kind === "indices") ?? [];
    if (at === undefined) throw new Error("no option");
    const asked = requestFor("neuronGradient", { inputs: [] });
    expect(optionOf(withOption(asked, at, " 1, 5 2"), at)).toBe("1, 5, 2");
    for (const text of ["1.5", "x", "1,,x"]) expect(() => withOption(asked, at, text)).toThrow();
  });

  it("can be asked as they are added: what has no default has a value", () => {
    const detail = {
      inputs: [create(InputSpecSchema, { name: "image", shape: [-1n, 1n, 8n, 8n], dataType: DataType.FLOAT32 })],
      modules: [create(ModuleSchema, { name: "conv1", outputShapes: [{ sizes: [1n, 16n, 8n, 8n] }] })],
    };
    for (const { field } of METHODS) {
      const request = requestFor(field, detail, "conv1");
      const method = methodIn(request);
      for (const option of method ? optionsFor(method, detail.inputs) : [])
        expect([field, option.label, optionOf(request, option) !== ""]).toEqual([
          field,
          option.label,
          option.required ?? false,
        ]);
    }
    expect(requestFor("occlusion", detail).method).toMatchObject({
      value: { windows: { image: { sizes: [1n, 2n, 2n] } } },
    });
    const neuron = requestFor("neuronGradient", detail, "conv1");
    expect(neuron.method).toMatchObject({ value: { neuron: { module: "conv1", index: { positions: [0n, 0n, 0n] } } } });
  });

  it("have fields for all that the contract has: numbers, choices, tensors, and JSON", () => {
    const inputs = [create(InputSpecSchema, { name: "ids", shape: [-1n, 4n], dataType: DataType.INT64 })];
    const put = (field: string, label: string, text: string): object => {
      const method = METHODS.find((each) => each.field === field);
      const option = method && optionsFor(method, inputs).find((each) => each.label === label);
      if (!option) throw new Error(`${field} has no ${label}`);
      const request = withOption(requestFor(field, { inputs }, "words"), option, text);
      expect(optionOf(request, option)).not.toBe("");
      expect(optionOf(withOption(request, option, ""), option)).toBe("");
      return request;
    };
    expect(put("layerIntegratedGradients", "baseline", "3")).toMatchObject({
      method: { value: { path: { baselines: { byInput: { ids: { kind: { case: "tokenId", value: 3n } } } } } } },
    });
    expect(put("integratedGradients", "quadrature", "QUADRATURE_RIEMANN_LEFT")).toMatchObject({
      method: { value: { path: { quadrature: Quadrature.RIEMANN_LEFT } } },
    });
    expect(put("lrp", "rules", '{"flatten": {"epsilon": 1e-9}}')).toMatchObject({
      method: { value: { rules: { flatten: { kind: { case: "epsilon", value: 1e-9 } } } } },
    });
    expect(put("saliency", "noise: n samples", "7")).toMatchObject({ noiseTunnel: { nSamples: 7 } });
    expect(() => put("lrp", "rules", "{flatten}")).toThrow();
    const mask = tensorJson(numbers([0, 0, 1, 1], [1, 4], DataType.INT64));
    expect(put("featureAblation", "mask", mask)).toMatchObject({
      method: { value: { masks: { byInput: { ids: { shape: [1n, 4n] } } } } },
    });
  });
});

describe("predictions", () => {
  const logits = tensor(Float32Array.of(0, 0, 0, 1, 3, 2), [2, 3]);
  const asked = (classes: readonly object[]): Exchange =>
    ({
      model: detail({ labels: ["a", "b"] }),
      question: { model: "m", inputs: {} },
      reply: {
        classes,
        predictions: { logits, other: logits },
        message: { predictions: { outputs: [{ name: "logits" }] } },
      },
    }) as unknown as Exchange;

  it("are probabilities where there are classes", () => {
    // numpy: exp([1, 3, 2]) / sum
    const expected = [0.09003057, 0.66524096, 0.24472847];
    softmax([1, 3, 2]).forEach((each, index) => {
      expect(each).toBeCloseTo(expected[index] ?? NaN, 7);
    });
    const bars = barsOf(asked([{}, {}]), "logits", logits, 1);
    expect(bars.map(({ name }) => name)).toEqual(["b", "2", "a"]);
    expect(softmax([1000, 0])).toEqual([1, 0]);
  });

  it("are elements otherwise", () => {
    expect(barsOf(asked([{}, {}]), "other", logits, 1).map(({ value }) => value)).toEqual([1, 3, 2]);
    expect(barsOf(asked([]), "logits", logits, 1).map(({ value }) => value)).toEqual([1, 3, 2]);
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
