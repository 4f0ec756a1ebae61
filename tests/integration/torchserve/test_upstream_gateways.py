"""One gateway before others, each with models of its own, as if on machines of their own: calls are shared, and
where one of them goes no call is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

import cutaway as ca
from tests.support import token_files
from tests.support.health import health
from tests.support.replicas import X, javas, load, package_who, who
from tests.support.reply_equality import differences
from tests.support.serving import Server, package, serving
from tests.support.waiting import until

MEBIBYTES = 20
ONE = np.ones((1, 1), np.float32)
LONG = ca.IntegratedGradients(n_steps=4096, quadrature=ca.Quadrature.RIEMANN_MIDDLE)

WIDE = """
import time
from pathlib import Path

import torch
from torch import nn

from cutaway.adapters import Adapter
from cutaway.results import InputSpec


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Identity()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        wide = self.wide(torch.arange(int(x[0, 0]) << 18, dtype=torch.float32).reshape(len(x), -1))
        return wide[:, :1] + x * self.scale


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.5)
        Path({passes!r}).open("a").write("x")
        return x * 2


class WideAdapter(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 1)),)

    def build(self):
        return Wide()


class SlowAdapter(WideAdapter):
    def build(self):
        return Slow()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that tell which TorchServe they are of, that reply much, and that take long."""
    directory = tmp_path_factory.mktemp("store")
    (directory / "wide.py").write_text(WIDE.format(passes=str(directory / "passes")))
    package_who(directory)
    package(directory, "wide", f"{directory / 'wide.py'}:WideAdapter")
    package(directory, "slow", f"{directory / 'wide.py'}:SlowAdapter")
    return directory


@pytest.fixture(scope="module")
def inner(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two gateways with a TorchServe each."""
    with ExitStack() as stack:
        logs = (tmp_path_factory.mktemp("inner") / "logs" for _ in range(2))
        yield [stack.enter_context(serving(store, each)) for each in logs]


@pytest.fixture(scope="module")
def server(inner: list[Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The one before them."""
    addresses = ",".join(each.address for each in inner)
    with serving(None, tmp_path_factory.mktemp("outer") / "logs", "--behind", addresses) as running:
        yield running


def pids(servers: list[Server]) -> set[int]:
    """Of the TorchServes, as their models tell them."""
    return {pid for each in servers for pid in javas(each)}


@pytest.mark.slow
def test_calls_are_shared(server: Server, inner: list[Server]) -> None:
    """One caller alone is answered by both in turn, callers beside each other by both alike."""
    with ca.Client(server.address) as client:
        assert {who(client) for _ in range(4)} == pids(inner)
        assert {name.model for name in client.list_models()} == {"who", "wide", "slow"}
    with load(server) as running:
        until(lambda: running.answers.total() > 200)
    # Alike is meant for as long as both answer at one pace, which a busy machine does not see to.
    assert min(running.answers[each] for each in pids(inner)) > 0.05 * running.answers.total()


@pytest.mark.slow
def test_the_answer_is_the_same(server: Server, inner: list[Server]) -> None:
    """Whole or in pieces, larger than any one message too; errors keep their reason and field."""
    with ca.Client(server.address, timeout=60) as client, ca.Client(inner[0].address, timeout=60) as direct:
        for stream, rows in ((False, 1), (True, 1), (True, MEBIBYTES)):
            x = {"x": np.full((1, 1), rows, np.float32)}
            asked: dict[str, Any] = {"captures": "wide", "input_gradients": True, "stream": stream}
            ours, theirs = client.inspect("wide", x, **asked), direct.inspect("wide", x, **asked)
            assert list(differences(ours, theirs, 0.0)) == []
            assert ours.timings.queue_ms >= 0
        assert client.get_model("wide") == direct.get_model("wide")
        for stream in (False, True):
            with pytest.raises(ca.InvalidArgument) as caught:
                client.inspect("wide", x, captures="nowhere", stream=stream)
            assert caught.value.reason == "MODULE_NOT_FOUND"
            assert caught.value.field == "captures[0].module"
        with pytest.raises(ca.NotFound):
            client.inspect("nobody", x)


@pytest.mark.slow
def test_who_hangs_up_is_heard_of_behind(server: Server, store: Path) -> None:
    """A caller who stops waiting costs the worker behind no more passes."""
    passes = store / "passes"

    async def hang_up() -> None:
        async with ca.AsyncClient(server.address) as client:
            asked = asyncio.ensure_future(client.inspect("slow", {"x": ONE}, attributions=[LONG], target=0))
            await asyncio.to_thread(until, lambda: _size(passes) > before + 2)
            asked.cancel()

    def has_ended() -> bool:
        now = _size(passes)
        time.sleep(2.0)  # four passes
        return _size(passes) == now

    before = _size(passes)
    asyncio.run(hang_up())
    until(has_ended)
    assert _size(passes) - before < LONG.n_steps


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
def test_no_call_is_lost_when_one_goes(server: Server, inner: list[Server], store: Path, tmp_path: Path) -> None:
    """Under load one is killed, gateway and all, and what is at its address later takes part and ends in order: the
    other answers."""
    with serving(store, tmp_path / "third") as third:
        addresses = f"{third.address},{inner[0].address}"
        with serving(None, tmp_path / "outer", "--behind", addresses) as outer:
            with load(outer) as running:
                until(lambda: all(running.answers[each] for each in (*javas(third), *javas(inner[0]))))
                third.process.kill()
                third.process.wait()
                told = running.answers[next(iter(javas(inner[0])))]
                until(lambda: running.answers[next(iter(javas(inner[0])))] > told + 100)
                assert health(outer.address) == "SERVING"
                with serving(store, tmp_path / "again", "--address", third.address) as again:
                    until(lambda: all(running.answers[each] for each in javas(again)))
                until(lambda: running.answers[next(iter(javas(inner[0])))] > told + 300)
            assert health(outer.address) == "SERVING"


@pytest.mark.slow
def test_none_is_left(store: Path, tmp_path: Path) -> None:
    """Calls are told at once when to try again, and health turns; with the first that is back, calls pass."""
    with (
        serving(store, tmp_path / "inner") as only,
        serving(None, tmp_path / "outer", "--behind", only.address) as outer,
        ca.Client(outer.address) as client,
    ):
        only.process.kill()
        only.process.wait()
        until(lambda: health(outer.address) == "NOT_SERVING")
        for stream in (False, True):
            with pytest.raises(ca.Unavailable) as caught:
                client.inspect("who", X, stream=stream)
            assert caught.value.reason == "BACKEND_UNAVAILABLE"
            assert caught.value.retry_after_s
        with serving(store, tmp_path / "again", "--address", only.address):
            until(lambda: health(outer.address) == "SERVING")
            assert who(client)


@pytest.mark.slow
def test_a_version_is_asked_that_was_resolved(store: Path, tmp_path: Path) -> None:
    """One of two has a newer version: who names none gets the newest, from the one that has it, and each is pinned."""
    newer = tmp_path / "store"
    newer.mkdir()
    shutil.copy(next(store.glob("who-*.mar")), newer)
    package(newer, "who", f"{store / 'who.py'}:Who", version="2.0")
    (tmp_path / "old").mkdir()
    shutil.copy(next(store.glob("who-*.mar")), tmp_path / "old")
    with (
        serving(tmp_path / "old", tmp_path / "one", "--embedded") as one,
        serving(newer, tmp_path / "two", "--embedded") as two,
        serving(None, tmp_path / "outer", "--behind", f"{one.address},{two.address}") as outer,
        ca.Client(outer.address) as client,
    ):
        until(lambda: len(client.list_models()) == 2)
        for stream in (False, True):
            for asked, version in (("who", "2.0"), ("who/versions/1.0", "1.0"), ("who/versions/2.0", "2.0")):
                for _ in range(4):
                    assert client.inspect(asked, X, stream=stream).provenance.version == version


@pytest.mark.slow
def test_they_are_called_with_tls_and_a_token(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any client would; without, this one says why it does not begin."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    guarded = {
        "CUTAWAY_TOKENS": token_files.write(
            tmp_path / "tokens.toml", token_files.entry("onward", {"*": token_files.EVERY})
        ),
        "CUTAWAY_TLS_CERTIFICATE": tmp_path / "server.pem",
        "CUTAWAY_TLS_KEY": tmp_path / "key.pem",
    }
    for name, value in guarded.items():
        monkeypatch.setenv(name, str(value))
    with serving(store, tmp_path / "inner", "--embedded") as secured:
        for name in guarded:
            monkeypatch.delenv(name)
        monkeypatch.setenv("CUTAWAY_START_TIMEOUT_S", "20")
        monkeypatch.setenv("CUTAWAY_BEHIND_CA", str(tmp_path / "ca.pem"))
        assert "send a token" in _refusal(secured.address, tmp_path)
        monkeypatch.delenv("CUTAWAY_START_TIMEOUT_S")
        monkeypatch.setenv("CUTAWAY_BEHIND_TOKEN", "onward")
        with (
            serving(None, tmp_path / "outer", "--behind", secured.address) as outer,
            ca.Client(outer.address) as client,
        ):
            assert client.inspect("who", X).predictions


def _refusal(behind: str, directory: Path) -> str:
    command = [sys.executable, "-m", "cutaway.console", "serve", "--address", "127.0.0.1:0", "--behind", behind]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr


def test_one_or_the_other(store: Path, tmp_path: Path) -> None:
    """A model store and gateways behind at once, or neither, is a mistake that is told."""
    for words in ([], ["--model-store", str(store), "--behind", "127.0.0.1:1"]):
        command = [sys.executable, "-m", "cutaway.console", "serve", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        said = " ".join(ended.stderr.replace("│", " ").split())
        assert "give either a model store (--model-store) or the gateways behind this one" in said


@pytest.mark.parametrize(
    ("behind", "variables", "said"),
    [
        ("nonsense", {}, "INVALID_VALUE [CUTAWAY_BEHIND]: 'nonsense' is no HOST:PORT"),
        (
            "192.0.2.1:50051",
            {"CUTAWAY_BEHIND_TOKEN": "abc"},
            "TOKEN_EXPOSED [CUTAWAY_BEHIND_TOKEN]: a token is sent to 192.0.2.1:50051 in TLS only: set "
            "CUTAWAY_BEHIND_CA to its certificate's authority",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_at_once(
    tmp_path: Path, behind: str, variables: dict[str, str], said: str
) -> None:
    """An address without a port, or a token that others could read: the end comes before anybody is waited for."""
    command = [sys.executable, "-m", "cutaway.console", "serve", "--behind", behind]
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stderr.strip()) == (1, said)
