"""A caller who is nobody costs the server nothing: what they send is not read."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

import cutaway as ca
from cutaway.client.transport import SERVICE
from tests.conftest import ADAPTERS
from tests.support.prometheus import named, scraped
from tests.support.serving import Server, package, serving
from tests.support.token_files import EVERY, entry, write

MEBIBYTE = 1 << 20
STRANGERS = 12
SENT = bytes(48 * MEBIBYTE)


def peak_bytes(server: Server) -> int:
    """The most memory that the server had until now."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


async def refusals(address: str, method: str, authorization: str) -> Counter[grpc.StatusCode]:
    """What becomes of strangers who all send a large request at once, each over a connection of their own."""
    options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    metadata = (("authorization", authorization),) if authorization else ()

    async def refusal() -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            path = f"/{SERVICE}/{method}"
            several: Any = channel.unary_stream(path)
            one: Any = channel.unary_unary(path)
            try:
                if method == "InspectStream":
                    async for _ in several(SENT, metadata=metadata):
                        pass
                else:
                    await one(SENT, metadata=metadata)
            except grpc.aio.AioRpcError as failure:
                return failure.code()
            return grpc.StatusCode.OK

    return Counter(await asyncio.gather(*(refusal() for _ in range(STRANGERS))))


@pytest.mark.slow
@pytest.mark.skipif(not psutil.LINUX, reason="the peak of a process's memory is read from /proc")
def test_what_strangers_send_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen callers without a token, or with a wrong one, each with a request of 48 MiB, are refused and counted, and
    the server's memory grows by less than two requests; who has a token is answered."""
    package(tmp_path / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    tokens = write(tmp_path / "tokens.toml", entry("mine", {"*": EVERY}))
    monkeypatch.setenv("CUTAWAY_TOKENS", str(tokens))
    monkeypatch.setenv("CUTAWAY_METRICS_ADDRESS", "127.0.0.1:0")
    with serving(tmp_path / "store", tmp_path / "logs", "--engine=embedded") as server:
        said = next(line for line in server.said if line.startswith("metrics: "))
        with ca.Client(server.address, token="mine") as client:
            x = {"x": np.ones((1, 3), np.float32)}
            client.inspect("tiny", x)
            before = peak_bytes(server)
            for method in ("Inspect", "InspectStream", "ListModels"):
                for authorization in ("", "Bearer wrong"):
                    refused = asyncio.run(refusals(server.address, method, authorization))
                    assert refused == {grpc.StatusCode.UNAUTHENTICATED: STRANGERS}
            assert peak_bytes(server) - before < 2 * len(SENT)
            client.inspect("tiny", x)
        samples = scraped(said.removeprefix("metrics: http://").removesuffix("/metrics"))
    counted = named(samples, "cutaway_calls_total", "method", "reason")
    for method in ("Inspect", "InspectStream", "ListModels"):
        assert {reason: counted[(method, reason)] for reason in ("TOKEN_REQUIRED", "TOKEN_INVALID")} == {
            "TOKEN_REQUIRED": STRANGERS,
            "TOKEN_INVALID": STRANGERS,
        }
