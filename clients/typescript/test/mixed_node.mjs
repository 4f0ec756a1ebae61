// In Node: reads questions from a file, and writes what came of them beside it.
import { readFileSync, writeFileSync } from "node:fs";
import { outcomes } from "./mixed.mjs";

const [, , asked, told] = process.argv;
const { url, requests } = JSON.parse(readFileSync(asked, "utf8"));
writeFileSync(told, JSON.stringify(await outcomes(url, requests)));
