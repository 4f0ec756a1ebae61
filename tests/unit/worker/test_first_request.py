"""The first explanation of a process finds everything imported."""

from __future__ import annotations

import json
import subprocess
import sys

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
(reply,) = worker.answer([Call("inspect", requests.encode(request).SerializeToString())])
assert decode_worker_reply(reply).response
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_no_package_is_imported_by_the_first_explanation() -> None:
    """Neither sympy nor the parts of torch that take a second or more; single modules of torch may be."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    imported = json.loads(done.stdout.splitlines()[-1])
    assert len(imported) < 20, imported
