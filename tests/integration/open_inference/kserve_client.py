"""Asks a server by KServe's clients, in their own environment: ``kserve_client.py HOST:PORT HOST:PORT X.npy OUT.npz``,
the addresses of gRPC and of HTTP. Prints what is no array as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

INSIDE = json.dumps({"captures": [{"module": "conv"}], "attributions": [{"integratedGradients": {}}]})


def _request(x: Any, *, binary: bool, model: str = "classes") -> InferRequest:
    sent = InferInput("image", [*x.shape], "FP32")
    sent.set_data_from_numpy(x, binary_data=binary)
    return InferRequest(model, [sent], request_id="seven", parameters={"cutaway": INSIDE})


async def _ask(address: str, http_address: str, x: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    url = f"http://{http_address}"
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        found["rest"] = [
            await rest.is_server_live(url),
            await rest.is_server_ready(url),
            await rest.is_model_ready(url, "classes"),
            await rest.is_model_ready(url, "nobody"),
        ]
        for name, binary in (("json", False), ("bytes", True)):
            reply = await rest.infer(url, _request(x, binary=binary), model_name="classes")
            arrays |= {f"{name}:{each.name}": each.as_numpy() for each in reply.outputs}
        try:
            await rest.infer(url, _request(x, binary=True, model="nobody"), model_name="nobody")
        except Exception as failure:
            found["rest error"] = str(failure)
    async with InferenceGRPCClient(address) as grpc:
        found["grpc"] = [
            await grpc.is_server_live(),
            await grpc.is_server_ready(),
            await grpc.is_model_ready("classes"),
        ]
        for name, binary in (("typed", False), ("raw", True)):
            reply = await grpc.infer(_request(x, binary=binary))
            arrays |= {f"{name}:{each.name}": each.as_numpy() for each in reply.outputs}
            found[f"{name} id"] = reply.id
    return found, arrays


if __name__ == "__main__":
    told, got = asyncio.run(_ask(sys.argv[1], sys.argv[2], np.load(sys.argv[3])))
    np.savez(sys.argv[4], **got)
    print(json.dumps(told))
