/** All of `ui`. */

export * from "./controls.js";
export * from "./loaded.js";
export * from "./parts.js";
export * from "./problems.js";
export * from "./text.js";
export * from "./verdicts.js";
