// The golden files of the contract: the same values from each form, and the same bytes back.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { create, createRegistry, equals, fromBinary, fromJsonString, toBinary, toJsonString } from "@bufbuild/protobuf";
import { file_cutaway_v1_inspection_service as service } from "../dist/gen/cutaway/v1/inspection_service_pb.js";
import * as inspection from "../dist/gen/cutaway/v1/inspection_pb.js";
import * as calls from "../dist/gen/cutaway/v1/inspection_service_pb.js";
import { file_google_rpc_error_details as details } from "../dist/gen/google/rpc/error_details_pb.js";
import { TensorSchema } from "../dist/gen/cutaway/v1/tensor_pb.js";
import { DataType, examplesFirst, fromMessage, HookPoint, tensor, toMessage } from "../dist/index.js";
import { inspection as inspectionOf } from "../dist/results.js";
import * as status from "../dist/gen/google/rpc/status_pb.js";

const directory = process.env.CUTAWAY_GOLDEN ?? "../../protos/testdata";
const registry = createRegistry(service, details);
const schemas = { ...inspection, ...calls, ...status };

for (const file of readdirSync(directory).filter((name) => name.endsWith(".binpb"))) {
  test(file, () => {
    const schema = schemas[`${file.split(".")[0]}Schema`];
    const bytes = readFileSync(`${directory}/${file}`);
    const message = fromBinary(schema, bytes);
    const text = readFileSync(`${directory}/${file.replace(".binpb", ".json")}`, "utf8");
    assert.ok(equals(schema, fromJsonString(schema, text, { registry }), message));
    assert.ok(
      equals(schema, fromJsonString(schema, toJsonString(schema, message, { registry }), { registry }), message),
    );
    assert.deepEqual([...toBinary(schema, message)], [...bytes]);
    assert.equal(message.$unknown, undefined);
  });
}

test("the examples of a tensor are put first, wherever they were", () => {
  const data = Int32Array.from({ length: 24 }, (_, index) => index);
  const values = { path: "", tensor: toMessage(tensor(data, [3, 2, 4])) };
  const message = create(inspection.InspectResponseSchema, {
    captures: [{ module: "rnn", point: HookPoint.OUTPUT, calls: [{ leaves: [values] }] }],
    exampleAxes: [{ tensor: "capture:rnn@output", axis: 1 }, { tensor: "output" }],
  });
  const result = examplesFirst(inspectionOf(message));
  const moved = result.captures["rnn@output"];
  assert.deepEqual(moved?.shape, [2, 3, 4]);
  assert.deepEqual([...(moved?.data ?? [])].slice(8, 16), [16, 17, 18, 19, 4, 5, 6, 7]);
  assert.deepEqual(
    result.message.exampleAxes.map(({ axis }) => axis),
    [1, undefined],
  );
  const first = inspectionOf(create(inspection.InspectResponseSchema, {}));
  assert.equal(examplesFirst(first), first);
});

const places = Array.from({ length: 2 ** 16 }, (_, bits) => bits);

/** From which bits on, without the sign, a number is none; and numbers that have no place of their own, with theirs. */
const halves = {
  FLOAT16: {
    dataType: DataType.FLOAT16,
    infinity: 0x7c00,
    rounded: { [1 + 2 ** -11]: 0x3c00, [1 + 3 * 2 ** -11]: 0x3c02, 65520: 0x7c00, [2 ** -25]: 0, [1.5 * 2 ** -24]: 2 },
  },
  BFLOAT16: {
    dataType: DataType.BFLOAT16,
    infinity: 0x7f80,
    rounded: { [1 + 2 ** -8]: 0x3f80, [1 + 3 * 2 ** -8]: 0x3f82, 3.4e38: 0x7f80 },
  },
};

for (const [name, { dataType, infinity, rounded }] of Object.entries(halves)) {
  test(`every number of ${name} comes back as it was, others are rounded to the nearest, even one`, () => {
    const written = (/** @type {Float32Array} */ data) =>
      new Uint16Array(toMessage(tensor(data, [data.length], dataType)).data?.slice().buffer ?? new ArrayBuffer());
    const bytes = new Uint8Array(Uint16Array.from(places).buffer);
    const { data } = fromMessage(create(TensorSchema, { dataType, shape: [BigInt(2 ** 16)], data: bytes }));
    const back = written(/** @type {Float32Array} */ (data));
    const isNumber = (/** @type {number} */ bits) => (bits & 0x7fff) <= infinity;
    for (const bits of places) assert.ok(isNumber(bits) ? back[bits] === bits : !isNumber(back[bits] ?? 0), `${bits}`);
    const others = Float32Array.from(Object.keys(rounded), Number);
    assert.deepEqual([...written(others)], Object.values(rounded));
  });
}
