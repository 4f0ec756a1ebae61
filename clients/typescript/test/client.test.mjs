// Against a real server, whose URLs and expected answers of the Python client are in the environment.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Client, CutawayError, DataType, HookPoint, Verdict, questionOf, requestOf, tensor } from "../dist/index.js";

const { url, guarded, expected } = JSON.parse(readFileSync(process.env.CUTAWAY_TEST ?? "", "utf8"));
const client = new Client(url);
const image = tensor(
  Float32Array.from({ length: 64 }, (_, index) => (index % 17) / 16),
  [1, 1, 8, 8],
);

const bits = (found) => Buffer.from(found.data.buffer, found.data.byteOffset, found.data.byteLength).toString("base64");
const failing = (reason, field) => (failure) => {
  assert.ok(failure instanceof CutawayError, String(failure));
  assert.deepEqual([failure.reason, failure.field], [reason, field], failure.message);
  return true;
};

/** @type {import("../dist/index.js").Question} */
const question = {
  model: "digits",
  inputs: { image },
  captures: ["conv1", { where: { case: "module", value: "conv2" }, points: [HookPoint.OUTPUT, HookPoint.GRAD_OUTPUT] }],
  inputGradients: true,
  attributions: [{ method: { case: "integratedGradients", value: { path: { nSteps: 64 } } } }],
};

for (const stream of [false, true]) {
  test(`the numbers are those of Python, to the bit${stream ? ", in pieces" : ""}`, async () => {
    const result = await client.inspect(question, { stream });
    assert.equal(bits(result.predictions.output), expected.output);
    assert.equal(bits(result.captures["conv1@output"]), expected.conv1);
    assert.equal(bits(result.captures["conv2@grad_output"]), expected.conv2_gradient);
    assert.equal(bits(result.inputGradients.image), expected.gradient);
    assert.equal(bits(result.attributions[0].values.image), expected.attribution);
    assert.deepEqual(result.captures["conv1@output"].shape, expected.conv1_shape);
    assert.equal(Verdict[result.attributions[0].verdict], expected.verdict);
    assert.equal(result.classes[0].label, expected.label);
  });
}

test("parts come as they exist, and together they are the result", async () => {
  const parts = [];
  const stream = client.inspectStream(question);
  for await (const part of stream) parts.push(part);
  const result = await stream.result();
  assert.deepEqual(
    parts.map(({ attributions }) => attributions.length),
    [0, 1, 1],
  );
  for (const part of parts) {
    assert.equal(bits(part.predictions.output), expected.output);
    assert.equal(bits(part.inputGradients.image), expected.gradient);
  }
  assert.equal(bits(result.attributions[0].values.image), expected.attribution);
  assert.ok(result.attributions[0].message.attributionMs > 0);
  assert.ok(result.message.timings.forwardMs > 0);
});

test("a text comes token by token, with what is inside at each", async () => {
  const calls = [];
  const asked = {
    model: "gpt",
    inputs: ["the hooks see"],
    generate: { maxNewTokens: 4 },
    captures: ["transformer.h.1"],
    options: { seed: 3n },
  };
  const writer = new Client(guarded.url, { token: guarded.token });
  const stream = writer.inspectStream(asked);
  for await (const { captured } of stream) {
    calls.push(captured.filter(({ point }) => point === HookPoint.OUTPUT).length);
  }
  const result = await stream.result();
  const whole = await writer.inspect(asked);
  assert.deepEqual(calls.slice(0, 4), [1, 2, 3, 4]);
  assert.deepEqual(Object.keys(result.captures), Object.keys(whole.captures));
  for (const [name, found] of Object.entries(whole.captures)) assert.equal(bits(result.captures[name]), bits(found));
  assert.deepEqual(result.message.generated, whole.message.generated);
  assert.equal(bits(result.predictions.tokens), bits(whole.predictions.tokens));
  assert.equal(Verdict[result.message.replay.verdict], "AGREES");
});

test("a stream that is not iterated to its end still has the whole result", async () => {
  const stream = client.inspectStream(question);
  const parts = stream[Symbol.asyncIterator]();
  const first = await parts.next();
  assert.ok(first.value);
  assert.equal(first.value.attributions.length, 0);
  const result = await stream.result();
  assert.equal(bits(result.attributions[0].values.image), expected.attribution);
  assert.ok((await parts.next()).done);
  assert.equal(await stream.result(), result);
});

test("the error of a stream comes after what is right, and again from its result", async () => {
  /** @type {import("../dist/index.js").Question} */
  const asked = {
    model: "doored",
    inputs: { x: tensor(new Float32Array(4).fill(1), [1, 4]) },
    attributions: [
      { method: { case: "saliency", value: {} } },
      { method: { case: "layerActivation", value: { layer: "unused" } } },
    ],
  };
  const stream = new Client(guarded.url, { token: guarded.token }).inspectStream(asked);
  const counts = [];
  const fault = failing("METHOD_INAPPLICABLE", "attributions[1].layer_activation.layer");
  await assert.rejects(async () => {
    for await (const { attributions } of stream) counts.push(attributions.length);
  }, fault);
  assert.deepEqual(counts, [0, 1]);
  await assert.rejects(stream.result(), fault);
});

for (const how of ["leaves its loop", "aborts it"]) {
  test(`a caller who ${how} ends a stream`, async () => {
    /** @type {import("../dist/index.js").Question} */
    const endless = {
      model: "net",
      inputs: { input: tensor(new Float32Array(4).fill(1), [1, 4]) },
      attributions: [{ method: { case: "kernelShap", value: { nSamples: 8000 } } }],
    };
    const controller = new AbortController();
    const before = await cancelled();
    const caller = new Client(guarded.url, { token: guarded.token });
    const stream = caller.inspectStream(endless, { signal: controller.signal });
    const left = (async () => {
      for await (const { predictions } of stream) {
        assert.deepEqual(predictions.output.shape, [1, 64]);
        if (how === "leaves its loop") break;
        controller.abort(new Error("changed my mind"));
      }
    })();
    if (how === "aborts it") await assert.rejects(left, /changed my mind/);
    else await left;
    await assert.rejects(stream.result(), how === "aborts it" ? /changed my mind/ : failing("INTERNAL", ""));
    while ((await cancelled()) !== before + 1) await new Promise((resume) => setTimeout(resume, 20));
  });
}

/** How many streams of the server were cancelled. */
async function cancelled() {
  const samples = await (await fetch(guarded.metrics)).text();
  const counted = /cutaway_calls_total\{(?=[^}]*code="CANCELLED")(?=[^}]*method="InspectStream")[^}]*\} (\d+)/.exec(
    samples,
  );
  return Number(counted?.[1] ?? 0);
}

test("every type of tensor", async () => {
  for (const [name, type] of Object.entries({ float16: 1, bfloat16: 2, float32: 3, float64: 4 })) {
    const { predictions } = await client.inspect({ ...question, options: { replyDataType: type } });
    assert.equal(predictions.output.dataType, DataType[name.toUpperCase()]);
    assert.deepEqual([...predictions.output.data].map(Number), expected.types[name]);
  }
});

test("models and their modules", async () => {
  assert.ok((await client.models()).some(({ model }) => model === "digits"));
  const detail = await client.model("digits", { operators: true });
  assert.deepEqual(
    detail.inputs.map(({ name }) => name),
    ["image"],
  );
  assert.ok(detail.operators.length > 0);
});

test("a file for the model to decode", async () => {
  const data = new Uint8Array(Buffer.from(expected.png, "base64"));
  const result = await client.inspect({ model: "digits", inputs: [{ data, mediaType: "image/png" }] });
  assert.equal(bits(result.predictions.output), expected.output_of_png);
});

test("errors have reasons and fields", async () => {
  await assert.rejects(client.inspect({ ...question, model: "nope" }), failing("MODEL_NOT_FOUND", "model"));
  await assert.rejects(
    client.inspect({ ...question, captures: ["nope"] }),
    failing("MODULE_NOT_FOUND", "captures[0].module"),
  );
  await assert.rejects(
    client.inspect({ ...question, captures: ["nope"] }, { stream: true }),
    failing("MODULE_NOT_FOUND", "captures[0].module"),
  );
  await assert.rejects(
    client.inspect({ ...question, inputs: { image: tensor(new Float32Array(4), [1, 4]) } }),
    failing("INPUT_SHAPE", "tensors.by_name.image"),
  );
  await assert.rejects(
    client.inspect({ ...question, featureNames: { image: ["a", "b"] } }),
    failing("INPUT_FEATURES", "tensors.feature_names.image"),
  );
  await assert.rejects(client.inspect(question, { timeoutMs: 1 }), failing("DEADLINE_EXCEEDED", ""));
  await assert.rejects(new Client("http://127.0.0.1:1").models(), failing("SERVER_UNREACHABLE", ""));
  assert.throws(() => tensor(new Float32Array(3), [1, 4]), failing("TENSOR_SIZE", ""));
  assert.throws(() => new Client("http://example.com", { token: "x" }), failing("TOKEN_EXPOSED", "token"));
});

test("the names of columns are read from the contract's JSON", () => {
  const read = questionOf({ model: "m", tensors: { featureNames: { x: { names: ["a", "b"] } } } });
  assert.deepEqual(read.featureNames, { x: ["a", "b"] });
  const { input } = requestOf(read);
  assert.ok(input.case === "tensors");
  assert.deepEqual(input.value.featureNames.x.names, ["a", "b"]);
});

test("a call that is aborted ends with the caller's own reason", async () => {
  const controller = new AbortController();
  const call = client.inspect(question, { signal: controller.signal });
  controller.abort(new Error("changed my mind"));
  await assert.rejects(call, /changed my mind/);
});

test("tokens", async () => {
  await assert.rejects(new Client(guarded.url).models(), failing("TOKEN_REQUIRED", ""));
  assert.ok((await new Client(guarded.url, { token: guarded.token }).models()).length > 0);
});

test("a reply that is too large for one message comes in pieces", async () => {
  const { captures } = await new Client(guarded.url, { token: guarded.token }).inspect({
    model: "net",
    inputs: { input: tensor(new Float32Array(4 * 4096).fill(1), [4096, 4]) },
    captures: ["0"],
  });
  assert.deepEqual(captures["0@output"].shape, [4096, 64]);
});
