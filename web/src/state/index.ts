/** All of `state`. */

export * from "./asking.js";
export * from "./draft.js";
export * from "./exchange.js";
export * from "./fragment.js";
export * from "./route.js";
export * from "./server.js";
