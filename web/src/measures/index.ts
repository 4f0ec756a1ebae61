/** All of `measures`. */

export * from "./layout.js";
export * from "./numbers.js";
export * from "./statistics.js";
