"""What can be reached of a running system from elsewhere: one port, and no more."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import cutaway as ca
from tests.conftest import ADAPTERS
from tests.support.processes import family
from tests.support.serving import Server, package, serving

X = {"x": np.ones((1, 3), np.float32)}
_KINDS = (socket.AF_INET, socket.AF_INET6)


def addresses() -> list[tuple[socket.AddressFamily, str]]:
    """Those of this machine that others can reach."""
    found = [(each.family, each.address) for several in psutil.net_if_addrs().values() for each in several]
    # One of a link alone, with its zone behind a percent sign, is no address to be called at.
    return [(kind, it) for kind, it in found if kind in _KINDS and "%" not in it and not _stays_here(it)]


def _stays_here(address: str) -> bool:
    read = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(read, "ipv4_mapped", None)  # 127.0.0.1, as Java writes it
    return read.is_loopback or bool(mapped and mapped.is_loopback)


def open_ports(kind: socket.AddressFamily, address: str) -> Iterator[int]:
    """The TCP ports at ``address`` that take a connection: every one of them is tried."""
    for port in range(1, 1 << 16):
        with socket.socket(kind, socket.SOCK_STREAM) as trying:
            # A connection may be given the very port that it goes to, and reach itself.
            if trying.connect_ex((address, port)) == 0 and trying.getsockname() != trying.getpeername():
                yield port


def of_others(server: Server) -> set[int]:
    """The ports on which somebody else on this machine listens."""
    ours = {process.pid for process, _ in family(server)}
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {each.laddr.port for each in listening if each.laddr and each.pid not in ours}


def reachable(server: Server) -> set[tuple[str, int]]:
    """The sockets of ``server`` and of all that it started that others can send to, TCP and UDP."""
    sockets = [each for process, _ in family(server) for each in process.net_connections("inet")]
    waiting = [each for each in sockets if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and each.laddr]
    return {
        ("tcp" if each.type == socket.SOCK_STREAM else "udp", each.laddr.port)
        for each in waiting
        if not _stays_here(each.laddr.ip)
    }


@pytest.mark.slow
def test_a_scan_from_elsewhere_finds_one_port(tmp_path: Path) -> None:
    """Of the whole system, TorchServe, its workers and the gateway, at work, one port is open beyond loopback; what
    the processes listen on and what a scan of every port finds say the same."""
    others = addresses()
    if not others:
        pytest.skip("this machine has no address beyond loopback")
    package(tmp_path / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    with serving(tmp_path / "store", tmp_path / "logs", "--address", "0.0.0.0:0") as server:
        port = int(server.address.rpartition(":")[2])
        with ca.Client(f"127.0.0.1:{port}") as client:
            for stream in (False, True):
                client.inspect("tiny", X, captures=["linear"], stream=stream)
            assert reachable(server) == {("tcp", port)}
            foreign = of_others(server)
            found = {each for kind, address in others for each in open_ports(kind, address)}
            foreign |= of_others(server)
            client.list_models()
    assert found - foreign == {port}
