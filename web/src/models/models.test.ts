/** The module tree: which rows are shown, and where boxes are drawn. */

import { create } from "@bufbuild/protobuf";
import { HookPoint } from "@cutaway/client";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { describe, expect, it } from "vitest";
import { blocksOf, capturing, leavesOf, requestAt, spread } from "./places.js";
import { allIn, foldedAtFirst, matches, ran, shownRows, treeOf } from "./tree.js";

const DETAIL = create(ModelDetailSchema, {
  modules: [
    { name: "", type: "Net", calls: 1 },
    { name: "layer1", type: "Sequential", calls: 1 },
    { name: "layer1.0", type: "Conv2d", calls: 1, outputShapes: [{ sizes: [1n, 4n] }] },
    { name: "layer1.1", type: "ReLU", calls: 0 },
    { name: "fc", type: "Linear", calls: 2 },
  ],
  operators: [
    { address: "layer1:add#0", calls: 1 },
    { address: ":mul#0", calls: 1 },
  ],
});
const ROWS = treeOf(DETAIL.modules, DETAIL.operators);
const names = (folded: string[], sought: string): string[] =>
  shownRows(ROWS, new Set(folded), sought).map(({ row }) => row.address);

describe("globs", () => {
  it("are those of the contract", () => {
    const cases: [string, string, boolean][] = [
      ["conv*", "conv1", true],
      ["conv*", "conv1.weight", false],
      ["layer*.conv?", "layer1.conv2", true],
      ["layer*.conv?", "layer1.0.conv2", false],
      ["**.conv2", "layer1.0.conv2", true],
      ["**", "", true],
      ["*", "", true],
      ["a?", "a.", false],
      ["a.c", "abc", false],
    ];
    for (const [pattern, name, expected] of cases) expect(matches(pattern, name), `${pattern} ${name}`).toBe(expected);
  });

  it("take time that grows with their length only", () => {
    expect(matches(`${"**".repeat(2000)}!`, "x".repeat(2000))).toBe(false);
  });
});

describe("the tree", () => {
  it("has each module above what is inside it, operators first", () => {
    expect(allIn(ROWS).map(({ address }) => address)).toEqual([
      "",
      ":mul#0",
      "layer1",
      "layer1:add#0",
      "layer1.0",
      "layer1.1",
      "fc",
    ]);
    expect(allIn(ROWS).map(({ inside }) => inside.length)).toEqual([3, 0, 3, 0, 0, 0, 0]);
    expect(shownRows(ROWS, new Set(), "").map(({ depth }) => depth)).toEqual([0, 1, 1, 2, 2, 2, 1]);
  });

  it("begins with what a caller may see", () => {
    const modules = DETAIL.modules.filter(({ name }) => !["", "layer1"].includes(name));
    const rows = treeOf(modules, DETAIL.operators);
    expect(rows.map(({ address }) => address)).toEqual(["layer1.0", "layer1.1", "fc"]);
  });

  it("leaves out what is folded, and finds what is sought with all above it", () => {
    expect(names(["layer1"], "")).toEqual(["", ":mul#0", "layer1", "fc"]);
    expect(names(["layer1"], "relu")).toEqual(["", "layer1", "layer1.1"]);
    expect(names([], "layer*.?")).toEqual(["", "layer1", "layer1.0", "layer1.1"]);
    expect(shownRows(ROWS, new Set(), "relu").map(({ match }) => match)).toEqual([false, false, true]);
  });

  it("is folded at first where it is large", () => {
    expect(foldedAtFirst(ROWS)).toEqual(new Set());
    const many = Array.from({ length: 400 }, (_, at) => ({ name: `a${at % 2 ? `.b${at}` : at}`, type: "M" }));
    const { modules } = create(ModelDetailSchema, { modules: [{ name: "" }, { name: "a" }, ...many] });
    const rows = treeOf(modules, []);
    expect(foldedAtFirst(rows).size).toBeGreaterThan(0);
  });
});

describe("leaves", () => {
  it("are modules that ran with none inside that ran", () => {
    const ran = { outputShapes: [{ sizes: [1n] }] };
    const modules = [
      { name: "", ...ran },
      { name: "attention", ...ran },
      { name: "attention.out_proj" },
      { name: "block", ...ran },
      { name: "block.layers" },
      { name: "block.layers.0", ...ran },
    ];
    expect(leavesOf(create(ModelDetailSchema, { modules })).map(({ name }) => name)).toEqual([
      "attention",
      "block.layers.0",
    ]);
  });

  it("are chosen over the whole depth, the first and the last among them", () => {
    const layers = Array.from({ length: 5000 }, (_, index) => index);
    const chosen = spread(layers, 128);
    expect(chosen).toHaveLength(128);
    expect([chosen[0], chosen.at(-1)]).toEqual([0, 4999]);
    const steps = new Set(chosen.slice(1).map((index, before) => index - (chosen[before] ?? 0)));
    expect([...steps].sort()).toEqual([39, 40]);
    expect(spread(layers.slice(0, 5), 128)).toEqual([0, 1, 2, 3, 4]);
    expect(spread(layers, 1)).toEqual([0]);
  });

  it("in the outermost list of several are the blocks", () => {
    const named = (...all: string[]): string[] =>
      blocksOf(create(ModelDetailSchema, { modules: all.map((name) => ({ name })) }));
    expect(named("", "h", "h.0", "h.0.experts.0", "h.0.experts.1", "h.1", "h.1.mlp")).toEqual(["h.0", "h.1"]);
    expect(named("", "only.0", "fc1")).toEqual([]);
  });

  it("are captured once", () => {
    const own = { captures: ["conv1", requestAt("fc", HookPoint.OUTPUT)] };
    const more = ["conv2", "fc", ""].map((name) => requestAt(name, HookPoint.OUTPUT));
    expect(capturing(own, ...more).captures).toEqual([...own.captures, more[0], more[2]]);
    expect(more[2]?.where.value).toBe(".");
  });
});

describe("the path of data", () => {
  it("is of modules that ran, or in which one did", () => {
    const inner = allIn(ROWS).filter(ran);
    expect(inner.map(({ name }) => name)).toEqual(["Net", "layer1", "0", "fc"]);
  });
});
