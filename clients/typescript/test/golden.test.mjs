// The golden files of the contract: the same values from each form, and the same bytes back.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { createRegistry, equals, fromBinary, fromJsonString, toBinary, toJsonString } from "@bufbuild/protobuf";
import { file_cutaway_v1_inspection_service as service } from "../dist/gen/cutaway/v1/inspection_service_pb.js";
import * as inspection from "../dist/gen/cutaway/v1/inspection_pb.js";
import * as calls from "../dist/gen/cutaway/v1/inspection_service_pb.js";
import { file_google_rpc_error_details as details } from "../dist/gen/google/rpc/error_details_pb.js";
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
