/** PyTorch models with their insides visible: a client for browsers and Node. */

export { arrays } from "./arrays.js";
export { Client, type CallOptions, type ClientOptions, type InspectOptions } from "./client.js";
export { type Example, type Question, questionOf, requestOf } from "./question.js";
export { CutawayError } from "./errors.js";
export { ReplyStream } from "./stream.js";
export { type Attribution, type Captured, type Inspection, examplesFirst, HookPoint, Verdict } from "./results.js";
export { byName, fromMessage, tensor, type Tensor, toMessage, type TypedArray } from "./tensors.js";
export { Better } from "./gen/cutaway/v1/attribution_pb.js";
export { DataType } from "./gen/cutaway/v1/tensor_pb.js";
export type { StreamProgress } from "./gen/cutaway/v1/inspection_service_pb.js";
export type { Model, ModelDetail } from "./gen/cutaway/v1/model_pb.js";
