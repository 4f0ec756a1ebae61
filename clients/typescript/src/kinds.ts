/** The kinds of tensors, by message and field. Written by tools/array_kinds.py from the server's own. */
export const KINDS: Readonly<Partial<Record<string, string>>> = {
  "InspectResponse.predictions": "output",
  "InspectResponse.input_gradients": "gradient",
  "InspectResponse.parameter_gradients": "parameter_gradient",
  "InspectResponse.unedited_predictions": "unedited",
  "InspectResponse.sweep": "sweep",
  "InspectResponse.sweep_estimates": "sweep_estimate",
  "InspectResponse.direct": "direct",
  "Attribution.values": "attribution",
  "Attribution.standard_errors": "standard_error",
  "TokenAttribution.ids": "token_ids",
  "TokenAttribution.values": "token_attribution",
  "Metric.curve": "metric_curve",
  "Attack.inputs": "attacked_input",
  "Attack.predictions": "attacked_output",
  "CapturedLeaf.tensor": "capture",
  "CapturedLeaf.positions": "positions",
};
