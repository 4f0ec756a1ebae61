"""Calls that are wrong: mypy and pyright find each of them. Nothing here runs.

A comment ``wrong: CODE RULE`` is on the line of each mistake: the code of mypy, and the rule of pyright.
"""

from __future__ import annotations

import numpy as np

import cutaway as ca

x = np.zeros((2, 3), np.float32)


def blocking(client: ca.Client) -> None:
    client.inspect("net", {"x": x}, capture="conv1")  # wrong: call-arg reportCallIssue
    client.inspect("net")  # wrong: call-arg reportCallIssue
    client.inspect(3, {"x": x})  # wrong: arg-type reportArgumentType
    client.inspect("net", {"x": x}, target=0.5)  # wrong: arg-type reportArgumentType
    client.inspect("net", {"x": x}, target=[0.5])  # wrong: arg-type reportArgumentType
    client.inspect("net", {"x": x}, attributions=[ca.Capture("fc")])  # wrong: list-item reportArgumentType
    client.inspect("net", {"x": x}, attributions=[ca.Saliency])  # wrong: list-item reportArgumentType
    client.inspect("net", {"x": x}, check=True)  # wrong: arg-type reportArgumentType
    client.inspect("net", {"x": x}, edits=[ca.Capture("conv1")])  # wrong: list-item reportArgumentType
    client.inspect("net", {"x": x}, timeout="5 s")  # wrong: arg-type reportArgumentType
    client.inspect("net", {"x": x}, ["conv1"])  # wrong: call-arg reportCallIssue
    result = client.inspect("net", {"x": x})
    _ = result.prediction  # wrong: attr-defined reportAttributeAccessIssue
    _ = result.attributions["Saliency"]  # wrong: call-overload reportCallIssue,reportArgumentType
    _ = result.attributions[0].verdicts  # wrong: attr-defined reportAttributeAccessIssue
    _ = result.captures["conv1"].outputs  # wrong: attr-defined reportAttributeAccessIssue
    result.to_pandas("captures")  # wrong: arg-type reportArgumentType
    result.plot(rows=1)  # wrong: call-arg reportCallIssue
    client.inspect_stream("net", {"x": x}, stream=True)  # wrong: call-arg reportCallIssue
    client.inspect_stream("net", {"x": x}, captures=3)  # wrong: arg-type reportArgumentType
    _ = client.inspect_stream("net", {"x": x}).result().capture  # wrong: attr-defined reportAttributeAccessIssue
    client.get_model("net", operator=True)  # wrong: call-arg reportCallIssue


def methods() -> None:
    ca.IntegratedGradients(steps=64)  # wrong: call-arg reportCallIssue
    ca.IntegratedGradients(n_steps="many")  # wrong: arg-type reportArgumentType
    ca.LayerGradCam()  # wrong: call-arg reportCallIssue
    ca.Capture("fc", at=3)  # wrong: arg-type reportArgumentType
    ca.TopK("three")  # wrong: arg-type reportArgumentType


async def asynchronous(client: ca.AsyncClient) -> None:
    await client.inspect("net", {"x": x}, capture="conv1")  # wrong: call-arg reportCallIssue
    await client.inspect("net", {"x": x}, target=0.5)  # wrong: arg-type reportArgumentType
    await client.inspect("net", {"x": x}, attributions=[ca.Zero("fc")])  # wrong: list-item reportArgumentType
    _ = client.inspect("net", {"x": x}).predictions  # wrong: attr-defined reportAttributeAccessIssue
    _ = (await client.inspect("net", {"x": x})).gradients  # wrong: attr-defined reportAttributeAccessIssue
    client.inspect_stream("net", {"x": x}, capture="fc")  # wrong: call-arg reportCallIssue
    for _ in client.inspect_stream("net", {"x": x}):  # wrong: attr-defined reportGeneralTypeIssues
        pass
