/** The module tree: which rows are shown, and where boxes are drawn. */

import { create } from "@bufbuild/protobuf";
import { HookPoint } from "@cutaway/client";
import { ModelDetailSchema } from "@cutaway/contract/model_pb";
import { describe, expect, it } from "vitest";
import { type Drawing, Flow, near } from "./flow.js";
import { HEIGHT, layoutOf, WIDTH } from "./layout.js";
import { blocksOf, capturing, leavesOf, requestAt, spread } from "./places.js";
import { allIn, foldedAtFirst, matches, shownRows, treeOf } from "./tree.js";

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

describe("the flow of data", () => {
  const named = (...modules: string[]): { name: string; type: string; calls: number }[] =>
    modules.map((name) => ({ name, type: "M", calls: 1 }));
  const flowOf = (modules: string[], operators: string[], edges: [string, string][]): Flow => {
    const dataFlow = edges.map(([from, to]) => ({
      ...(from.startsWith("<") ? { input: from.slice(1) } : { source: from }),
      ...(to.startsWith(">") ? { output: to.slice(1) } : { target: to }),
    }));
    const ran = operators.map((address) => ({ address, calls: 1 }));
    return new Flow(create(ModelDetailSchema, { modules: named(...modules), operators: ran, dataFlow }));
  };
  const residual = flowOf(
    ["", "stem", "block", "block.conv", "block.act"],
    ["stem:conv#0", "block.conv:conv#0", "block:add#0", "block.act:relu#0"],
    [
      ["<x", "stem:conv#0"],
      ["stem:conv#0", "block.conv:conv#0"],
      ["stem:conv#0", "block:add#0"],
      ["block.conv:conv#0", "block:add#0"],
      ["block:add#0", "block.act:relu#0"],
      ["block.act:relu#0", ">y"],
    ],
  );
  const edgesOf = ({ edges }: Drawing): string[] => edges.map((pair) => pair.join(" > "));

  it("has a box for each module that is closed, and edges between boxes", () => {
    expect(edgesOf(residual.drawn(new Set([""])))).toEqual(["x → > stem", "stem > block", "block > → y"]);
    const open = residual.drawn(new Set(["", "block"]));
    expect(edgesOf(open)).toEqual([
      "x → > stem",
      "stem > block.conv",
      "stem > block:add#0",
      "block.conv > block:add#0",
      "block:add#0 > block.act",
      "block.act > → y",
    ]);
    expect(open.boxes.get("block:add#0")?.row?.kind).toBe("operator");
    expect(residual.openAtFirst()).toEqual(new Set(["", "block"]));
    expect(residual.around("block.act:relu#0")).toEqual(["block.act", "block", ""]);
  });

  it("shows a part that feeds itself, and no loop of what is inside a closed one", () => {
    const cells = flowOf(
      ["", "cell", "cell.a", "cell.b"],
      ["cell.a:mul#0", "cell.b:add#0", ":sum#0"],
      [
        ["cell.a:mul#0", "cell.b:add#0"],
        [":sum#0", ":sum#0"],
      ],
    );
    expect(edgesOf(cells.drawn(new Set([""])))).toEqual([":sum#0 > :sum#0"]);
  });

  it("is opened as far as it fits, and cut around a box where it does not", () => {
    const layers = Array.from({ length: 5000 }, (_, at) => `layers.${at}`);
    const chain = flowOf(
      ["", "layers", ...layers],
      [],
      layers.slice(1).map((each, at) => [layers[at] ?? "", each]),
    );
    expect(chain.openAtFirst()).toEqual(new Set([""]));
    const all = chain.drawn(new Set(["", "layers"]));
    expect(all.boxes.size).toBe(5000);
    const around = near(all, "layers.2500");
    expect(around.boxes.size).toBe(300);
    expect([...around.boxes.keys()].slice(0, 1)).toEqual(["layers.2350"]);
    expect(edgesOf(around)).toHaveLength(299);
    expect([...near(all, undefined).boxes.keys()].at(-1)).toBe("layers.299");
  });

  it("is drawn from the top to the bottom, without boxes over each other", () => {
    const { places, paths } = layoutOf(residual.drawn(new Set(["", "block"])));
    const y = (key: string): number => places.get(key)?.y ?? NaN;
    for (const [one, other, path] of paths) {
      expect(y(one)).toBeLessThan(y(other));
      expect(path).toMatch(/^M[\d.]+ [\d.]+ (Q[\d.]+ [\d.]+ [\d.]+ [\d.]+ )*L[\d.]+ [\d.]+$/);
    }
    const all = [...places.values()];
    for (const [at, one] of all.entries())
      for (const other of all.slice(at + 1))
        expect(Math.abs(one.x - other.x) >= WIDTH || Math.abs(one.y - other.y) >= HEIGHT).toBe(true);
  });
});
