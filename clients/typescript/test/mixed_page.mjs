// In a browser: fetches questions from the page's own server, and sends what came of them there.
import { outcomes } from "./mixed.mjs";

const { url, requests } = await (await fetch("questions.json")).json();
const told = await outcomes(url, requests).catch((failure) => [{ failed: String(failure) }]);
await fetch("told", { method: "POST", body: JSON.stringify(told) });
