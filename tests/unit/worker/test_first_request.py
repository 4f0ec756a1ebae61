"""The first explanation of a process finds everything imported, and later requests find what is known of the model."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from array import array

import pytest
import torch
from torch import Tensor, nn

from cutaway.adapters import TensorAdapter
from cutaway.contract.results import InputSpec
from cutaway.contract.wire.models import DETAILS
from cutaway.server.worker.call import Call
from cutaway.v1 import inspection_service_pb2
from tests.support.worker_calls import response, worker

SCRIPT = """
import json, sys
from torch import nn
from cutaway.server.worker.worker import Worker
from cutaway.server.worker.call import Call
from cutaway.client.request_builder import build_request
from cutaway.contract.wire import requests
from cutaway.contract.torchserve_messages import decode_worker_reply

worker = Worker.of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "net")
request = build_request("net", [[1.0, 2.0, 3.0]], attributions=["IntegratedGradients"], input_gradients=True)
before = set(sys.modules)
assert "torch._dynamo" not in before, "a second of every start, which few models need"
(reply,) = worker.answer([Call("inspect", requests.encode(request).SerializeToString())])
assert decode_worker_reply(reply).response
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.slow
def test_no_package_is_imported_by_the_first_explanation() -> None:
    """Neither sympy nor the parts of torch that take a second or more; single modules of torch may be."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    imported = json.loads(done.stdout.splitlines()[-1])
    assert len(imported) < 20, imported


class Counting(nn.Module):
    """A linear layer that counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.passes = nn.Linear(3, 2), array("q", [0])

    def forward(self, x: Tensor) -> Tensor:
        self.passes[0] += 1
        logits: Tensor = self.linear(torch.relu(x))
        return logits


def test_a_model_is_described_once() -> None:
    """Each description runs the model on its example once, however often it is asked for; each has its own parts."""
    model = Counting()
    served = worker(TensorAdapter(model, inputs=[InputSpec("x", "float32", (-1, 3))]))
    requests = [
        inspection_service_pb2.GetModelRequest(model="m", **dict(zip(DETAILS, chosen))).SerializeToString()
        for chosen in itertools.product((False, True), repeat=len(DETAILS))
    ]
    first = [response(*served.answer([Call("describe", data)])) for data in requests]
    passes = model.passes[0]
    assert [response(*served.answer([Call("describe", data)])) for data in reversed(requests)] == first[::-1]
    assert model.passes[0] == passes
    details = [inspection_service_pb2.GetModelResponse.FromString(data).model for data in first]
    for number, detail in enumerate(details):
        found = [bool(getattr(detail, name)) for name in DETAILS]
        assert found == [bool(number & 4), bool(number & 2), bool(number & 1)]
