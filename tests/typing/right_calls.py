"""Calls that are right: type checkers find nothing wrong in them. Nothing here runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import cutaway as ca
from cutaway.contract.tensors import Array

x = np.zeros((2, 3), np.float32)


def blocking(client: ca.Client) -> None:
    result: ca.Inspection = client.inspect("net", {"x": x}, captures="conv*", attributions=[ca.Saliency()])
    general: ca.InspectResult = result
    output: Array = general.captures["conv1"].output
    verdict: ca.Verdict | None = result.attributions[0].verdict
    probability: float = result.classes[0].probability
    client.inspect("net", x, target="benign", attributions="Saliency")
    client.inspect("net", ["a text", "another"], target=["a", "b"], check=ca.CheckRequest(relative_tolerance=1e-3))
    client.inspect("net", ca.Raw(b"", "image/png"), target=3, input_gradients=True, dry_run=True)
    client.inspect("net", {"x": x}, target=[0, 1], captures=[ca.Capture("fc*", at="grad_output"), "conv1"])
    client.inspect("net", {"x": x}, edits=[ca.Zero("conv1")], compare=True, timeout=5, seed=1)
    client.inspect("net", {"x": x}, attributions=["layer_grad_cam:conv1", {"method": "saliency"}], edits="zero:conv1")
    client.inspect("net", {"x": x}, attributions=[ca.IntegratedGradients(n_steps=64, baselines={"x": x})])
    with client.inspect_stream("net", {"x": x}, captures="*") as stream:
        place, array = next(iter(stream))
        assembled: ca.Inspection = stream.result()
    labels: Sequence[str] = client.get_model("net").labels
    assembled.with_labels(labels).plot("shown.png", row=1)
    result.to_pandas("predictions")
    result.to_xarray()
    _ = output, verdict, probability, place.upper(), array.shape


async def asynchronous(client: ca.AsyncClient) -> None:
    result: ca.Inspection = await client.inspect("net", {"x": x}, target=ca.TopK(3), captures="conv*")
    async with client.inspect_stream("net", {"x": x}, captures="*") as stream:
        async for place, array in stream:
            _ = place.upper(), array.shape
        assembled: ca.Inspection = await stream.result()
    detail: ca.ModelDetail = await client.get_model("net")
    _ = result.predictions["logits"].shape, assembled.timings.queue_ms, detail.inputs[0].feature_names
