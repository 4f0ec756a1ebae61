/** Changes as edits of the contract, and what they do downstream. */

import { create, type MessageInitShape, toJson } from "@bufbuild/protobuf";
import { type Captured, HookPoint, type Inspection, tensor, toMessage } from "@cutaway/client";
import { EditSchema } from "@cutaway/contract/edit_pb";
import { InspectResponseSchema, type SweepSchema } from "@cutaway/contract/inspection_pb";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { describe, expect, it } from "vitest";
import type { Exchange } from "../state/exchange.js";
import { gridsOf } from "./Sweeping.js";
import { changesBetween, layersBelow, movedText, relativeChange } from "./downstream.js";
import { axesOf, type EditDraft, editOf, editText, placesOf, placeText } from "./edit.js";

const inspection = (captured: readonly Captured[]): Inspection => ({ captured }) as unknown as Inspection;

const CHANGE: EditDraft = { place: { address: "conv1" }, verb: "scale", amount: 0.5, at: [] };

describe("edits", () => {
  it("are those of the contract", () => {
    const point = "HOOK_POINT_OUTPUT";
    expect(toJson(EditSchema, editOf(CHANGE))).toEqual({ module: "conv1", point, scale: { factor: 0.5 } });
    expect(toJson(EditSchema, editOf({ ...CHANGE, place: { address: "a:relu#0" }, verb: "zero", at: [3] }))).toEqual({
      op: "a:relu#0",
      point,
      zero: {},
      slices: [{ axis: 1, start: "3", stop: "4" }],
    });
    const second = { address: "lstm", call: 1, path: "[0]" };
    expect(toJson(EditSchema, editOf({ ...CHANGE, place: second, at: [undefined, 7] }))).toMatchObject({
      call: 1,
      path: "[0]",
      slices: [{ axis: 2, start: "7", stop: "8" }],
    });
    expect(toJson(EditSchema, editOf({ ...CHANGE, verb: "clamp", amount: 0 }))).toMatchObject({
      clamp: { maximum: 0 },
    });
    expect(toJson(EditSchema, editOf({ ...CHANGE, verb: "add", amount: -1 }))).toMatchObject({ add: { scalar: -1 } });
  });

  it("say their places in words", () => {
    const slices = [
      { axis: 1, indices: [0n, -1n] },
      { axis: 2, start: 3n },
    ];
    const edit = { where: { case: "module", value: "a" }, kind: { case: "zero", value: {} }, slices } as const;
    expect(editText(edit)).toBe("zero a, axis 1: 0, -1, axis 2: 3 to its end");
  });

  it("are of the model itself, if it has no modules inside", () => {
    const model = create(ModelDetailSchema, { modules: [{ name: "", calls: 1, outputShapes: [{ sizes: [1n, 2n] }] }] });
    const [place = CHANGE.place] = placesOf({ model, question: { model: "m", inputs: {} }, reply: inspection([]) });
    expect(placeText(place)).toBe("the model");
    expect(editOf({ ...CHANGE, place }).where).toEqual({ case: "module", value: "." });
    expect(layersBelow(model, 1)).toEqual(["."]);
  });

  it("are along the axes of the place, as it was captured, or for the model's own example", () => {
    const sizes = [1n, 16n, 8n, 8n];
    const model = create(ModelDetailSchema, { modules: [{ name: "conv1", calls: 1, outputShapes: [{ sizes }] }] });
    const lstm = { module: "lstm", point: HookPoint.OUTPUT, call: 1, calls: 2, path: "[0]" };
    const captured = [{ ...lstm, name: "lstm@output#1:[0]", tensor: tensor(new Float32Array(6), [1, 2, 3]) }];
    const asked = { model, question: { model: "m", inputs: {} }, reply: inspection(captured) };
    const channels = ["channel", "row", "column"].map((name) => ({ name, size: undefined }));
    const positions = [
      { name: "position", size: 2 },
      { name: "feature", size: 3 },
    ];
    expect(placesOf(asked).map(placeText)).toEqual(["lstm, call 1, tensor [0]", "conv1"]);
    expect(placesOf(asked).map((place) => axesOf(asked, place))).toEqual([positions, channels]);
    expect(axesOf(asked, { address: "silent" })).toEqual([]);
    const cut = { ...asked, question: { ...asked.question, captures: [{ slices: [{ axis: 1 }] }] } };
    expect(placesOf(cut).map(placeText)).toEqual(["conv1"]);
  });
});

describe("sweeps", () => {
  const values = (name: string, ...numbers: number[]): object => {
    return { name, tensor: toMessage(tensor(Float64Array.from(numbers), [2, numbers.length / 2])) };
  };
  const message = create(InspectResponseSchema, {
    predictions: { targetValues: [1, 2] },
    sweep: [values("a", 1, 1, 2, 2.5), values("wide", 1, 1, 1, 2, 3, 4), values("b", 1, 1, 4, 0)],
    sweepEstimates: [values("a", 0, 0, 5, 6)],
  });
  const swept = (sweep: MessageInitShape<typeof SweepSchema>): Exchange => {
    const reply = { ...inspection([]), message, predictions: {}, classes: [], attributions: [] };
    return {
      model: create(ModelDetailSchema),
      question: { model: "m", inputs: ["x", "y"], sweep },
      reply,
    } as unknown as Exchange;
  };

  it("are what each patch adds to the target, in grids of as many places", () => {
    expect(gridsOf(swept({}), 1, false)).toEqual([
      { modules: ["a", "b"], places: ["0", "1"], values: Float64Array.of(0, 0.5, 2, -2) },
      { modules: ["wide"], places: ["0", "1", "2"], values: Float64Array.of(0, 1, 2) },
    ]);
    expect(gridsOf(swept({}), 1, true)).toMatchObject([{ values: Float64Array.of(3, 4) }]);
  });

  it("name the places that were asked for", () => {
    expect(gridsOf(swept({ places: [7n, -1n], axis: 2 }), 0, true)).toMatchObject([{ places: ["7", "-1"] }]);
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

  it("is of what is finite before; a mask that stays has not moved", () => {
    const mask = [-Infinity, 3, 4, NaN];
    expect(relativeChange(mask, mask)).toBe(0);
    expect(relativeChange(mask, [-Infinity, 3, 9, NaN])).toBe(1);
    expect(relativeChange(mask, [0, 3, 4, NaN])).toBe(Infinity);
    expect(relativeChange(mask, [-Infinity, NaN, 4, NaN])).toBeNaN();
  });

  it("is told in words", () => {
    const changes = [0.5, 0.25].map((value, index) => ({ name: `l${index}`, value }));
    expect(movedText(changes)).toBe("l0 moved most: by 50 % of its norm.");
    expect(movedText([{ name: "l0", value: 0 }])).toBe("No other layer moved.");
    expect(movedText([...changes, { name: "l2", value: NaN }])).toBe("Not finite with the change: l2.");
  });

  it("is asked of layers that ran and have none inside, as many as are not too large", () => {
    const sizes = [1n, 1n << 18n];
    const layers = Array.from({ length: 16 }, (_, index) => ({
      name: `block.${index}`,
      calls: 1,
      outputShapes: [{ sizes }],
    }));
    const detail = create(ModelDetailSchema, { modules: [{ name: "" }, { name: "block", calls: 1 }, ...layers] });
    expect(layersBelow(detail, 1)).toEqual(["block.0", "block.4", "block.8", "block.12"]);
  });
});
