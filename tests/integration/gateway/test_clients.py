"""Clients where applications make them: at the top of a module, before a fork, behind a proxy or a load balancer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc.aio
import numpy as np
import pytest
from torch import nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE, GatewayTransport
from cutaway.gateway import serve
from tests.support.relay import Relay

X = np.ones((1, 4), np.float32)
FORKED = """
import os, sys
import numpy as np
import cutaway as ca

unused, client = ca.Client(sys.argv[1]), ca.Client(sys.argv[1])
x = np.ones((1, 4), np.float32)
client.inspect("net", x)
for _ in range(12):
    child = os.fork()
    if not child:
        for each in (client, unused, ca.Client(sys.argv[1])):
            each.inspect("net", x, timeout=60)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    client.inspect("net", x)
"""
ASKS = "import sys, numpy, cutaway as ca; ca.Client(sys.argv[1]).inspect('net', numpy.ones((1, 4), 'f'))"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server in this process."""
    with serve({"net": nn.Linear(4, 2)}) as server:
        yield server.address


def test_a_client_for_asyncio_may_be_made_anywhere_and_used_in_every_loop(address: str) -> None:
    """At the top of a module, as in FastAPI and Streamlit, before any loop runs; and in one loop after the other."""
    client = ca.AsyncClient(address)

    async def ask() -> None:
        replies = await asyncio.gather(*(client.inspect("net", X) for _ in range(8)))
        assert all(reply.predictions["output"].shape == (1, 2) for reply in replies)

    for _ in range(3):
        asyncio.run(ask())
    assert len(client._channels) == 1  # none of a loop that has ended

    async def close() -> None:
        await ask()
        await client.close()
        with pytest.raises(ValueError, match="closed"):
            await client.inspect("net", X)

    asyncio.run(close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_process_that_is_forked_has_channels_of_its_own(address: str) -> None:
    """Clients that have called before the fork, that have not, and that are made behind it."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, address], check=True)


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_this_machine_is_never_called_through_a_proxy(address: str, variable: str) -> None:
    """With and without a token: a proxy of the environment, here one that nobody runs, is for other machines."""
    subprocess.run(
        [sys.executable, "-c", ASKS, address], check=True, env={**os.environ, variable: "http://127.0.0.1:9"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cut", "swallow"])
def test_a_connection_that_is_lost_is_noticed(address: str, what: str) -> None:
    """Also if nothing says so, as behind a load balancer that forgot it: the call fails long before its deadline, with
    an error that says to try again, and the next one has a new connection."""
    relay = Relay(address)

    async def ask() -> None:
        async with ca.AsyncClient(relay.address, timeout=600) as client:
            with ca.Client(relay.address, timeout=600) as other:

                async def both() -> list[object]:
                    calls = client.inspect("net", X), asyncio.to_thread(other.inspect, "net", X)
                    replies = await asyncio.gather(*calls, return_exceptions=True)
                    return [each for each in replies if isinstance(each, BaseException)]

                assert not await both()
                getattr(relay, what)()
                lost = await both()
                assert all(isinstance(each, ca.Unavailable) for each in lost), lost
                assert not await both()
                if what == "swallow":
                    assert lost

    asyncio.run(ask())


@pytest.mark.slow
def test_a_swallowed_connection_is_noticed_before_a_patient_channel_notices(address: str) -> None:
    """Another channel, which waits 40 s for the answer to a ping, still waits when the client's call has failed. By
    default, gRPC waits a minute, whatever its keepalive timeout says."""
    relay = Relay(address)
    patient = (("grpc.keepalive_time_ms", 30_000), ("grpc.http2.ping_timeout_ms", 40_000))
    payload = GatewayTransport().inspect(build_request("net", X)).payload

    async def ask() -> None:
        async with (
            ca.AsyncClient(relay.address, timeout=600) as client,
            grpc.aio.insecure_channel(relay.address, patient) as channel,
        ):
            other: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
            await asyncio.gather(client.inspect("net", X), other(payload))
            relay.swallow()
            ours = asyncio.ensure_future(client.inspect("net", X))
            theirs = other(payload, timeout=600)
            with pytest.raises(ca.Unavailable):
                await ours
            assert not theirs.done()
            theirs.cancel()

    asyncio.run(ask())


def test_a_client_that_is_closed_says_so(address: str) -> None:
    """And closing it twice, or unused, is no error."""
    client = ca.Client(address)
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.inspect("net", X)
