/** Addresses and questions survive the way there and back. */

import { HookPoint, tensor } from "@cutaway/client";
import { describe, expect, it } from "vitest";
import { requestFor } from "../ask/methods.js";
import { type Draft, emptyDraft, fromText, jsonOf, messageOf, textOf } from "./draft.js";
import { readFragment, writeFragment } from "./fragment.js";

const DRAFT: Draft = {
  ...emptyDraft("digits"),
  inputs: { image: tensor(Float32Array.of(0.5, -1), [1, 2]) },
  captures: ["conv1", { where: { case: "op", value: ":add#0" }, points: [HookPoint.GRAD_OUTPUT] }],
  attributions: [requestFor("layerGradCam", { inputs: [] }, "conv2")],
  inputGradients: ["image"],
  compare: true,
};

describe("a question", () => {
  it("is the same after the way through JSON", () => {
    const back = fromText(JSON.stringify(jsonOf(DRAFT, true)));
    expect(messageOf(back)).toEqual(messageOf(DRAFT));
    const texts = { ...emptyDraft("texts"), inputs: ["é < &", { data: Uint8Array.of(1, 2), mediaType: "image/png" }] };
    expect(fromText(JSON.stringify(jsonOf(texts, true))).inputs).toEqual(texts.inputs);
  });

  it("leaves its inputs at home unless they are to go", () => {
    expect(jsonOf(DRAFT, false)).not.toHaveProperty("tensors");
    expect(fromText(JSON.stringify(jsonOf(DRAFT, false))).inputs).toBeUndefined();
    expect(jsonOf(DRAFT, true)).toHaveProperty("tensors.byName.image");
  });

  it("keeps every byte of its texts", () => {
    const data = [Uint8Array.of(0xef, 0xbb, 0xbf, 0x61), Uint8Array.of(0x61, 0xff)];
    const examples = data.map((each) => ({ data: each, mediaType: "text/plain" }));
    const text = JSON.stringify(jsonOf({ ...emptyDraft("texts"), inputs: examples }, true));
    expect(JSON.stringify(jsonOf(fromText(text), true))).toBe(text);
  });

  it("keeps the sign of a zero", () => {
    const given = fromText(
      '{"model": "m", "edits": [{"module": "a", "point": "HOOK_POINT_OUTPUT", "scale": {"factor": "-0"}}]}',
    );
    const [edit] = messageOf(fromText(textOf(given, true))).edits;
    expect(edit?.kind).toMatchObject({ case: "scale", value: { factor: -0 } });
  });

  it("is no question if a field is unknown", () => {
    expect(() => fromText('{"nobody": 1}')).toThrow("nobody");
  });
});

describe("an address", () => {
  it("holds any text", () => {
    const place = { view: "ask", question: '{"a": "?&=#% <script> \u202e é"}' };
    expect(readFragment(writeFragment(place))).toEqual(place);
    expect(readFragment("")).toEqual({ view: "", question: "" });
    expect(writeFragment({ view: "models", question: "" })).toBe("#/models");
  });
});
