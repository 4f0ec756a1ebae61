/** What the columns of a job are taken for. */

import { expect, test } from "vitest";
import { type Column, measuredOf } from "./folder.js";

const output = (about: Partial<Column>): Column => ({ name: "output:y", kind: "output", ...about });

test.each([
  ["a number", [output({})], 1],
  ["a vector of one number", [output({ shape: "1" })], 1],
  ["a vector", [output({ shape: "3" })], 0],
  ["tensors of several shapes", [output({ ragged: "true" })], 0],
  ["two numbers", [output({}), output({ name: "output:z" })], 0],
  ["a number beside classes", [output({}), { name: "prediction", kind: "prediction" }], 0],
])("an output is measured where it is %s", (_, columns, count) => {
  expect(measuredOf({ columns })).toHaveLength(count);
});
