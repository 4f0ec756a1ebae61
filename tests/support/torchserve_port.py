"""The TorchServe behind a gateway, asked past it: where it listens, and the token that it wants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import grpc
import psutil

import cutaway as ca
from cutaway.client.transport import TORCHSERVE_SCHEME
from cutaway.client.trust import Metadata, bearer
from cutaway.contract.torchserve_messages import decode_reply
from tests.support.processes import leader
from tests.support.serving import Server
from tests.support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Behind:
    """A TorchServe's own gRPC port for inference.

    Attributes:
        where: ``host:port``.
        token: what its calls carry.
    """

    where: str
    token: str | None

    @property
    def metadata(self) -> Metadata:
        """What its calls carry, for a channel of gRPC's own."""
        return bearer(self.token or "")

    def client(self) -> ca.Client:
        """Our client, of that port."""
        return ca.Client(f"{TORCHSERVE_SCHEME}{self.where}", token=self.token)


def behind(server: Server) -> Behind:
    """What ``server`` started, by the files that it was started with."""
    directory = home(leader(server))
    return Behind(f"127.0.0.1:{port(directory, 'grpc_inference_port')}", key(directory, "inference"))


def home(process: psutil.Process) -> Path:
    """The directory that a TorchServe runs in."""
    return Path(process.cwd())


def port(directory: Path, name: str) -> int:
    """One of its ports, by the configuration's name for it."""
    found = re.search(rf"^{name}=.*?(\d+)$", (directory / "config.properties").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def key(directory: Path, kind: Literal["inference", "management", "API"]) -> str:
    """One of its tokens."""
    return str(json.loads((directory / "key_file.json").read_text())[kind]["key"])


def managed(address: str, method: str, request: bytes, token: str) -> str:
    """What the management API behind ``address`` answers."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{_MANAGEMENT}/{method}")
        return decode_reply(call(request, timeout=PATIENCE_S, metadata=bearer(token))).decode()


_MANAGEMENT = "org.pytorch.serve.grpc.management.ManagementAPIsService"


def _text(number: int, text: str) -> bytes:
    """A field of a message."""
    return bytes([number << 3 | 2, len(text)]) + text.encode()


MODEL: dict[str, Callable[[str], bytes]] = {
    "ListModels": lambda _: b"",
    "DescribeModel": partial(_text, 1),
    "RegisterModel": lambda model: _text(9, f"{model}.mar"),
    "UnregisterModel": partial(_text, 1),
    "SetDefault": lambda model: _text(1, model) + _text(2, "1.0"),
    "ScaleWorker": lambda model: _text(1, model) + bytes([3 << 3, 0, 4 << 3, 0]),
}
"""Each method of it, and a request about a model: of no workers at all, for the last one."""
