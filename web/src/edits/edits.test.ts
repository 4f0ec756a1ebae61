/** Changes as edits of the contract, and what they do downstream. */

import { create, toJson } from "@bufbuild/protobuf";
import { tensor } from "@cutaway/client";
import { EditSchema } from "@cutaway/contract/edit_pb";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { describe, expect, it } from "vitest";
import { changesBetween, layersBelow } from "./downstream.js";
import { axesOf, editOf, type Wanted } from "./edit.js";

const CHANGE: Wanted = { place: "conv1", verb: "scale", amount: 0.5, axis: 0, index: 0 };

describe("edits", () => {
  it("are those of the contract", () => {
    const point = "HOOK_POINT_OUTPUT";
    expect(toJson(EditSchema, editOf(CHANGE))).toEqual({ module: "conv1", point, scale: { factor: 0.5 } });
    expect(toJson(EditSchema, editOf({ ...CHANGE, place: "a:relu#0", verb: "zero", axis: 1, index: 3 }))).toEqual({
      op: "a:relu#0",
      point,
      zero: {},
      slices: [{ axis: 1, start: "3", stop: "4" }],
    });
    expect(toJson(EditSchema, editOf({ ...CHANGE, verb: "clamp", amount: 0 }))).toMatchObject({
      clamp: { maximum: 0 },
    });
    expect(toJson(EditSchema, editOf({ ...CHANGE, verb: "add", amount: -1 }))).toMatchObject({ add: { scalar: -1 } });
  });

  it("are along the axes of the place", () => {
    const detail = create(ModelDetailSchema, {
      modules: [{ name: "conv1", outputShapes: [{ sizes: [1n, 16n, 8n, 8n] }] }, { name: "silent" }],
    });
    expect(axesOf(detail, "conv1").map(({ axis, name, size }) => [axis, name, size])).toEqual([
      [1, "channel", 16],
      [2, "row", 8],
      [3, "column", 8],
    ]);
    expect(axesOf(detail, "silent")).toEqual([]);
  });
});

describe("downstream", () => {
  it("is the norm of the difference by that of what was there", () => {
    const [one, other] = [tensor(Float32Array.of(3, 4), [1, 2]), tensor(Float32Array.of(3, 9), [1, 2])];
    const zero = tensor(Float32Array.of(0, 0), [1, 2]);
    const before = { "a@output": one, "b@output": one, "c@output": zero, "gone@output": one };
    expect(changesBetween(before, { "a@output": other, "b@output": one, "c@output": one })).toEqual([
      { name: "a", value: 1 },
      { name: "b", value: 0 },
      { name: "c", value: Infinity },
    ]);
  });

  it("is asked of layers that ran and have none inside, as many as are not too large", () => {
    const sizes = [1n, 1n << 18n];
    const layers = Array.from({ length: 16 }, (_, index) => ({
      name: `block.${index}`,
      calls: 1,
      outputShapes: [{ sizes }],
    }));
    const detail = create(ModelDetailSchema, { modules: [{ name: "" }, { name: "block", calls: 1 }, ...layers] });
    expect(layersBelow(detail)).toEqual(["block.0", "block.4", "block.8", "block.12"]);
  });
});
