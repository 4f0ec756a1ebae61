"""Triton's clients, by gRPC and by HTTP, with the same words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as by_grpc
from tritonclient.utils import InferenceServerException

from cutaway.server.embedded import Served
from tests.integration.open_inference.models import NUMBERS


@dataclass(frozen=True)
class Door:
    """One of Triton's clients.

    Attributes:
        kind: its module.
        client: connected.
    """

    kind: Any
    client: Any

    def infer(self, inputs: Mapping[str, np.ndarray], *, outputs: Sequence[str] = (), **more: Any) -> Any:
        sent = [self.input(name, array) for name, array in inputs.items()]
        asked = [self.kind.InferRequestedOutput(name) for name in outputs] or None
        return self.client.infer(more.pop("model", "classes"), sent, outputs=asked, **more)

    def input(self, name: str, array: np.ndarray, datatype: str = "", **how: Any) -> Any:
        types = {numbers.dtype: known for known, numbers in NUMBERS.items()}
        sent = self.kind.InferInput(name, array.shape, datatype or types.get(array.dtype, "BYTES"))
        sent.set_data_from_numpy(array, **how)
        return sent

    def refused(self, *arguments: Any, **more: Any) -> str:
        with pytest.raises(InferenceServerException) as failure:
            self.infer(*arguments, **more)
        return f"{failure.value.status()} {failure.value.message()}"


@contextmanager
def connected(kind: Any, server: Served) -> Iterator[Door]:
    """One of Triton's clients, connected to a server, while the block runs."""
    with kind.InferenceServerClient(server.address if kind is by_grpc else server.http_address) as client:
        yield Door(kind, client)
    client.close = lambda: None  # else it closes again when it is collected, for which its own thread must be alive


def names(reply: Any) -> list[str]:
    response = reply.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    return [each["name"] if isinstance(each, dict) else each.name for each in outputs]


def parameter(message: Any, name: str) -> str:
    if isinstance(message, dict):
        return str(message.get("parameters", {}).get(name, ""))
    return message.parameters[name].string_param if name in message.parameters else ""
