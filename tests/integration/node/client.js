// A client of Cutaway in another language: grpc-js, proto-loader and the protos that Cutaway ships, nothing else.
//
// Makes the calls that standard input has as JSON, and writes what each returned: all that the messages say, as protobuf's
// JSON, or the error with its details.
"use strict";

const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const { protos, calls } = JSON.parse(fs.readFileSync(0, "utf8"));

// Names and numbers as protobuf's JSON has them. A program would leave `bytes` out, and get a Buffer for each tensor.
const options = { includeDirs: [protos], keepCase: true, longs: String, enums: String, bytes: String, defaults: true };
const load = (...files) => protoLoader.loadSync(files, options);
const { InspectionService } = grpc.loadPackageDefinition(load("cutaway/v1/inspection_service.proto")).cutaway.v1;
const errorTypes = load("google/rpc/status.proto", "google/rpc/error_details.proto");

function main() {
  Promise.all(calls.map(make)).then((outcomes) => process.stdout.write(JSON.stringify(outcomes, finite)));
}

function make({ method, address, ca, token, deadline_ms, request }) {
  const credentials = ca ? grpc.credentials.createSsl(fs.readFileSync(ca)) : grpc.credentials.createInsecure();
  const client = new InspectionService(address, credentials, { "grpc.max_receive_message_length": -1 });
  const metadata = new grpc.Metadata();
  if (token) metadata.set("authorization", `Bearer ${token}`);
  const deadline = Date.now() + deadline_ms;
  const made = method === "InspectStream" ? inSeveral : inOne;
  return made(client, method, request, metadata, { deadline })
    .then((reply) => ({ reply }), (error) => ({ error: described(error) }))
    .finally(() => client.close());
}

function inOne(client, method, request, ...how) {
  return new Promise((resolve, reject) =>
    client[method](request, ...how, (error, reply) => (error ? reject(error) : resolve(reply))),
  );
}

// The reply of InspectStream: the response in the header, with the bytes of the chunks in its tensors; and the trailer.
async function inSeveral(client, method, request, ...how) {
  let response, trailer;
  const parts = [];
  for await (const { piece } of client[method]({ request }, ...how)) {
    if (piece.header) response = piece.header.response;
    if (piece.chunk) (parts[piece.chunk.tensor] ??= []).push(Buffer.from(piece.chunk.data, "base64"));
    if (piece.trailer) trailer = piece.trailer;
  }
  tensorsOf(response).forEach((tensor, index) => {
    tensor.data = Buffer.concat(parts[index] ?? []).toString("base64");
  });
  return { response, trailer };
}

// The tensors of a response, in the order in which chunks number them: that of the fields' numbers.
function tensorsOf(response) {
  const named = (list) => list.map(({ tensor }) => tensor);
  const ofAttribution = ({ values, metrics, tokens, standard_errors, features, references }) => [
    ...named(values),
    ...metrics.flatMap(({ curve }) => (curve ? [curve] : [])),
    ...(tokens ? [tokens.ids, tokens.values, ...(tokens.baseline_ids ? [tokens.baseline_ids] : [])] : []),
    ...named(standard_errors),
    ...named(features),
    ...named(references),
  ];
  const leaves = response.captures.flatMap(({ calls }) => calls.flatMap((call) => call.leaves));
  return [
    ...named(response.predictions?.outputs ?? []),
    ...leaves.flatMap(({ tensor, positions }) => (positions ? [tensor, positions] : [tensor])),
    ...named(response.input_gradients),
    ...named(response.parameter_gradients),
    ...response.attributions.flatMap(ofAttribution),
    ...named(response.unedited_predictions?.outputs ?? []),
    ...named(response.sweep),
    ...named(response.sweep_estimates),
    ...response.attacks.flatMap(({ inputs, predictions, attributions }) => [
      ...named(inputs),
      ...named(predictions),
      ...attributions.flatMap(({ attribution }) => ofAttribution(attribution)),
    ]),
    ...response.concepts.flatMap(({ derivatives, vectors }) => (vectors ? [derivatives, vectors] : [derivatives])),
    ...(response.influence ? tensorsOfInfluence(response.influence) : []),
    ...(response.counterfactual ? tensorsOfCounterfactual(response.counterfactual, named) : []),
  ];
}

function tensorsOfInfluence({ helpful, helpful_scores, harmful, harmful_scores, self_influence }) {
  return [helpful, helpful_scores, harmful, harmful_scores, ...(self_influence ? [self_influence] : [])];
}

function tensorsOfCounterfactual({ inputs, changed, predictions }, named) {
  return [...named(inputs), ...named(changed), ...named(predictions)];
}

// The status of a failed call, and its details by their type: "ErrorInfo", "BadRequest", "RetryInfo".
function described({ code, details: message, metadata }) {
  const [packed] = metadata.get("grpc-status-details-bin");
  const status = packed ? errorTypes["google.rpc.Status"].deserialize(packed) : { details: [] };
  const details = status.details.map(({ type_url, value }) => {
    const type = type_url.slice(type_url.lastIndexOf("/") + 1);
    return [type.replace("google.rpc.", ""), errorTypes[type].deserialize(Buffer.from(value, "base64"))];
  });
  return { code: grpc.status[code], message, details: Object.fromEntries(details) };
}

// NaN and infinities, which protobuf's JSON has as texts.
function finite(_, value) {
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

main();
