/** All of `measures`. */

export * from "./agreement.js";
export * from "./layout.js";
export * from "./numbers.js";
export * from "./statistics.js";
