"""TLS: who is let in, whom a client believes, and that a token never travels in the open."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import nn
from typer.testing import CliRunner

import cutaway as ca
from cutaway.cli import application
from cutaway.client.trust import is_loopback
from cutaway.contract.errors import Reason
from cutaway.gateway import serve
from cutaway.server.auth.tls import exposure_warning
from cutaway.server.settings import Settings
from tests.conftest import ADAPTERS
from tests.support.serving import package, serving
from tests.support.token_files import EVERY, entry, write

X = {"input": np.ones((1, 2), np.float32)}
PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Pki:
    """PEM files: two authorities, ours and a stranger's, and what they signed."""

    directory: Path

    def __getitem__(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def put(self, name: str, made: trustme.LeafCert) -> None:
        self[name].write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        self[f"{name}-key"].write_bytes(made.private_key_pem.bytes())

    def shown(self, name: str) -> ca.Tls:
        """A client that trusts ours, and shows ``name``."""
        return ca.Tls(ca=self["ours"], certificate=self[name], key=self[f"{name}-key"])

    def served(self, name: str = "server", *, callers: str = "") -> Settings:
        """A gateway that shows ``name``."""
        return Settings(
            tls_certificate=self[name], tls_key=self[f"{name}-key"], tls_client_ca=self[callers] if callers else None
        )


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    made = Pki(tmp_path_factory.mktemp("pki"))
    ours, stranger = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(made["ours"]))
    stranger.cert_pem.write_to_path(str(made["stranger"]))
    made.put("server", ours.issue_cert("127.0.0.1", "localhost"))
    made.put("elsewhere", ours.issue_cert("cutaway.example"))
    made.put("expired", ours.issue_cert("127.0.0.1", not_before=PAST, not_after=PAST.replace(year=2021)))
    made.put("caller", ours.issue_cert("caller.example"))
    made.put("old-caller", ours.issue_cert("caller.example", not_before=PAST, not_after=PAST.replace(year=2021)))
    made.put("strange-caller", stranger.issue_cert("caller.example"))
    return made


def asked(address: str, tls: bool | ca.Tls = False, token: str | None = None) -> None:
    """Ask in all ways, with both clients."""

    async def awaited() -> None:
        async with ca.AsyncClient(address, tls=tls, token=token, timeout=20) as client:
            await client.inspect("net", X, captures=["**"], stream=False)
            await client.inspect("net", X, captures=["**"], stream=True)

    with ca.Client(address, tls=tls, token=token, timeout=20) as client:
        client.list_models()
        client.inspect("net", X, stream=False)
        client.inspect("net", X, stream=True)
    asyncio.run(awaited())


def refused(address: str, tls: bool | ca.Tls = False, why: str = "") -> None:
    """Ask with both clients, in one message and in pieces; ``why`` is what each is told."""

    async def awaited(stream: bool) -> None:
        async with ca.AsyncClient(address, tls=tls, timeout=20) as client:
            await client.inspect("net", X, stream=stream)

    with ca.Client(address, tls=tls, timeout=20) as client:
        for stream in (False, True):
            for ask in (lambda s: client.inspect("net", X, stream=s), lambda s: asyncio.run(awaited(s))):
                with pytest.raises(ca.Unavailable) as caught:
                    ask(stream)
                assert caught.value.reason == Reason.SERVER_UNREACHABLE
                assert why in caught.value.message


def net() -> dict[str, nn.Module]:
    return {"net": nn.Linear(2, 2)}


def test_tls_lets_in_those_who_trust_it_and_nobody_in_the_open(pki: Pki) -> None:
    """Both clients, from paths and from bytes; a stranger's authority, the system's, and plaintext get no answer."""
    with serve(net(), settings=pki.served()) as server:
        asked(server.address, ca.Tls(ca=pki["ours"]))
        asked(server.address, ca.Tls(ca=pki["ours"].read_bytes()))
        asked(server.address, ca.Tls(ca=str(pki["ours"])))
        refused(server.address, why="the server speaks TLS, and this client does not: set tls")
        for tls in (True, ca.Tls(), ca.Tls(ca=pki["stranger"])):
            refused(server.address, tls, why="the server's certificate is not trusted")


@pytest.mark.parametrize(("name", "why"), [("expired", "is not trusted"), ("elsewhere", "is for another name")])
def test_a_server_that_is_not_who_it_should_be_is_not_asked(pki: Pki, name: str, why: str) -> None:
    """An expired certificate, or one for another name, is none."""
    with serve(net(), settings=pki.served(name)) as server:
        refused(server.address, ca.Tls(ca=pki["ours"]), why=f"the server's certificate {why}")


def test_tls_to_a_plaintext_port_is_refused(pki: Pki) -> None:
    """A client that asks for TLS never falls back."""
    with serve(net()) as server:
        refused(server.address, ca.Tls(ca=pki["ours"]), why="the server does not speak TLS")


def test_a_server_that_only_closes_connections_is_not_said_to_speak_tls() -> None:
    """A plaintext client whose connections are closed is told about TLS only where a handshake succeeds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def close_each() -> None:
            with suppress(OSError):
                while True:
                    listening.accept()[0].close()

        closing_thread = threading.Thread(target=close_each, daemon=True)
        closing_thread.start()
        refused(f"127.0.0.1:{listening.getsockname()[1]}", why="no server answers")
        listening.shutdown(socket.SHUT_RDWR)
        closing_thread.join()


def test_mutual_tls_lets_in_those_it_knows(pki: Pki) -> None:
    """Without a certificate, with an expired one, or with a stranger's, no call is answered, health included."""
    with serve(net(), settings=pki.served(callers="ours")) as server:
        asked(server.address, pki.shown("caller"))
        refused(server.address, why="the server speaks TLS")
        for tls in (ca.Tls(ca=pki["ours"]), pki.shown("old-caller"), pki.shown("strange-caller")):
            refused(server.address, tls)
        trusted = grpc.ssl_channel_credentials(pki["ours"].read_bytes())
        with grpc.secure_channel(server.address, trusted) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError):
                health.Check(health_pb2.HealthCheckRequest(), timeout=20)


def replace(pki: Pki, name: str, made: trustme.LeafCert | bytes) -> None:
    """Put new files in the place of the old ones, one after the other, as whoever renews certificates does."""
    if isinstance(made, bytes):
        fresh = {name: made}
    else:
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        fresh = {name: chain, f"{name}-key": made.private_key_pem.bytes()}
    for each, content in fresh.items():
        pki[f"{each}-new"].write_bytes(content)
        os.replace(pki[f"{each}-new"], pki[each])


def shown_by(address: str, ca_file: Path) -> str:
    """The serial number of the certificate that is shown there."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as inside,
    ):
        certificate = inside.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path) -> None:
    """New callers are shown the new one, and who is connected stays so. While the files are broken, or do not belong
    together yet, the old one is shown."""
    pki, ours = Pki(tmp_path), trustme.CA()
    ours.cert_pem.write_to_path(str(pki["ours"]))
    pki.put("server", ours.issue_cert("127.0.0.1"))
    trusting = ca.Tls(ca=pki["ours"])
    with (
        serve(net(), settings=pki.served()) as server,
        ca.Client(server.address, tls=trusting) as connected,
    ):
        connected.list_models()
        first = shown_by(server.address, pki["ours"])
        assert shown_by(server.address, pki["ours"]) == first
        for broken in (b"nonsense", b"", ours.issue_cert("127.0.0.1").cert_chain_pems[0].bytes()):
            replace(pki, "server", broken)
            assert shown_by(server.address, pki["ours"]) == first
            asked(server.address, trusting)
        replace(pki, "server", ours.issue_cert("127.0.0.1"))
        second = shown_by(server.address, pki["ours"])
        assert second != first
        asked(server.address, trusting)
        connected.list_models()
        pki["server"].unlink()
        assert shown_by(server.address, pki["ours"]) == second


def test_callers_authorities_change_without_a_restart(tmp_path: Path) -> None:
    """Whom mutual TLS lets in is whom the file names now."""
    pki, before, after = Pki(tmp_path), trustme.CA(), trustme.CA()
    before.cert_pem.write_to_path(str(pki["ours"]))
    before.cert_pem.write_to_path(str(pki["callers"]))
    pki.put("server", before.issue_cert("127.0.0.1"))
    pki.put("old", before.issue_cert("caller.example"))
    pki.put("new", after.issue_cert("caller.example"))
    with serve(net(), settings=pki.served(callers="callers")) as server:
        asked(server.address, pki.shown("old"))
        refused(server.address, pki.shown("new"))
        replace(pki, "callers", after.cert_pem.bytes())
        asked(server.address, pki.shown("new"))
        refused(server.address, pki.shown("old"))
        refused(server.address, ca.Tls(ca=pki["ours"]))
        replace(pki, "callers", b"nonsense")
        asked(server.address, pki.shown("new"))
        refused(server.address, pki.shown("old"))


def test_tokens_and_tls_together(pki: Pki, tmp_path: Path) -> None:
    """Inside TLS a token says who calls, as it does in plaintext."""
    tokens = write(tmp_path / "tokens.toml", entry("mine", {"*": EVERY}))
    settings = pki.served().model_copy(update={"tokens": tokens})
    tls = ca.Tls(ca=pki["ours"])
    with serve(net(), settings=settings) as server:
        asked(server.address, tls, "mine")
        with ca.Client(server.address, tls=tls) as client, pytest.raises(ca.Unauthenticated):
            client.list_models()


# Settings that cannot be.


def test_a_server_with_half_a_certificate_does_not_start(pki: Pki, tmp_path: Path) -> None:
    """What is missing, unreadable or does not belong together is said with the variable; no port opens meanwhile."""
    server, key, other = pki["server"], pki["server-key"], pki["caller-key"]
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    bad: dict[str, list[dict[str, Any]]] = {
        "CUTAWAY_TLS_KEY": [{"tls_certificate": server}, {"tls_certificate": server, "tls_client_ca": pki["ours"]}],
        "CUTAWAY_TLS_CERTIFICATE": [
            *({"tls_key": key}, {"tls_client_ca": pki["ours"]}),
            *({"tls_certificate": server, "tls_key": each} for each in (other, nonsense, tmp_path / "nowhere")),
            {"tls_certificate": nonsense, "tls_key": key},
        ],
        "CUTAWAY_TLS_CLIENT_CA": [
            {"tls_certificate": server, "tls_key": key, "tls_client_ca": each} for each in (nonsense, tmp_path / "no")
        ],
    }
    for variable, settings in bad.items():
        for each in settings:
            with pytest.raises(ca.InvalidArgument) as caught, serve(net(), settings=Settings(**each)):
                pass
            assert caught.value.field == variable, each


def test_an_operator_is_told_what_is_open(pki: Pki, tmp_path: Path) -> None:
    """One line where others can reach what is not guarded; none on loopback."""
    bare, tls, mutual = Settings(), pki.served(), pki.served(callers="ours")
    tokens = {"tokens": tmp_path}
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        assert exposure_warning(bare, address) == exposure_warning(bare, address, "") == ""
    for address in ("0.0.0.0:1", "[::]:1", "192.0.2.1:1", "cutaway.example:1"):
        assert "without tokens" in exposure_warning(bare, address)
        assert "without TLS" in exposure_warning(bare, address)
        assert "without tokens" in exposure_warning(tls, address)
        assert "without TLS" not in exposure_warning(tls, address)
        assert "without TLS" in exposure_warning(bare.model_copy(update=tokens), address)
        assert exposure_warning(mutual, address) == exposure_warning(tls.model_copy(update=tokens), address) == ""
        assert "\n" not in exposure_warning(bare, address)
        assert "without TLS" in exposure_warning(bare.model_copy(update=tokens), "127.0.0.1:1", address)  # HTTP's


# The client's side.

ELSEWHERE = [
    *(
        "192.0.2.1:50051",
        "cutaway.example:443",
        "[2001:db8::1]:1",
        "0.0.0.0:1",
        "localhost.example:1",
        "127.0.0.1.example:1",
    ),
    *("dns:///localhost:1", "ipv4:127.0.0.1:1,192.0.2.1:1", "127.0.0.1@192.0.2.1:1", "1:127.0.0.1", "127.0.0.1", ""),
]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_a_token_goes_nowhere_in_the_open(address: str, pki: Pki) -> None:
    """To all but this very machine a token goes inside TLS, and a client without it is not even made."""
    assert not is_loopback(address)
    for kind in (ca.Client, ca.AsyncClient):
        with pytest.raises(ca.InvalidArgument) as caught:
            kind(address, token="mine")
        assert (caught.value.reason, caught.value.field) in (
            (Reason.TOKEN_EXPOSED, "token"),
            (Reason.INVALID_VALUE, "address"),
        )
    if caught.value.reason == Reason.TOKEN_EXPOSED:
        ca.Client(address, token="mine", tls=ca.Tls(ca=pki["ours"])).close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/tmp/x"])
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    """Loopback and Unix sockets are nobody else's."""
    ca.Client(address, token="mine").close()


def test_a_proxy_does_not_see_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The proxy that the environment names is taken by gRPC even to loopback; a token does not go along."""
    seen = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as proxy:

        def listen() -> None:
            try:
                proxy.accept()[0].close()
                seen.set()
            except OSError:
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        tokens = write(tmp_path / "tokens.toml", entry("mine", {"*": EVERY}))
        with serve(net(), settings=Settings(tokens=tokens)) as server:
            asked(server.address, token="mine")
        assert not seen.is_set()
        proxy.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("token", ["", "two words", "a\n", "a\r\nx: y", "ä", "a" * 10 + "\0"])
def test_what_cannot_be_a_token_is_not_sent(token: str) -> None:
    """A newline that came along with a file is told, and the token itself is not repeated."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ca.Client("127.0.0.1:1", token=token)
    assert caught.value.field == "token"
    assert not token or token not in str(caught.value)


def test_half_a_certificate_is_no_tls(pki: Pki, tmp_path: Path) -> None:
    """A certificate without its key, or a file that is not there, is told before any call."""
    for tls in (ca.Tls(certificate=pki["caller"]), ca.Tls(key=pki["caller-key"]), ca.Tls(ca=tmp_path / "nowhere")):
        with pytest.raises(ca.InvalidArgument) as caught:
            ca.Client("127.0.0.1:1", tls=tls)
        assert caught.value.field == "tls"


def test_a_key_is_not_shown() -> None:
    """A log that prints a `Tls` does not print the key."""
    assert "secret" not in repr(ca.Tls(certificate=b"public", key=b"secret"))


# The command line.


def test_the_command_line_makes_tokens_and_asks_with_them(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cutaway token` prints the entry to stdout and the token to stderr, once; with both in their places, `models`
    and `layers` are answered, by option or by environment."""
    runner = CliRunner()
    made = runner.invoke(
        application.app, ["token", "da sh", "--models", "net", "--scopes", "predict,inspect", "--days", "1"]
    )
    assert made.exit_code == 0, made.output
    token = made.stderr.strip()
    assert len(token) == 43
    assert token not in made.stdout
    other = runner.invoke(application.app, ["token", "x", "--models", "*"])
    path = tmp_path / "tokens.toml"
    path.write_text(made.stdout + other.stdout)
    settings = pki.served().model_copy(update={"tokens": path})
    with serve(net(), settings=settings) as server:
        trusting = ["--address", server.address, "--ca", str(pki["ours"])]
        assert runner.invoke(application.app, ["models", *trusting]).exit_code == 1
        found = runner.invoke(application.app, ["models", *trusting, "--token", token])
        assert found.exit_code == 0, found.output
        assert "net" in found.stdout
        monkeypatch.setenv("CUTAWAY_TOKEN", token)
        assert runner.invoke(application.app, ["layers", "net", *trusting]).exit_code == 0
        monkeypatch.setenv("CUTAWAY_TOKEN", "")
        assert isinstance(runner.invoke(application.app, ["models", *trusting]).exception, ca.Unauthenticated)


@pytest.mark.parametrize("variable", ["CUTAWAY_TOKENS", "CUTAWAY_TLS_CERTIFICATE", "CUTAWAY_TLS_CLIENT_CA"])
@pytest.mark.parametrize("content", [pytest.param(None, marks=pytest.mark.slow), "nonsense"])
def test_a_file_that_cannot_be_used_ends_it_before_torchserve_starts(
    variable: str, content: str | None, pki: Pki, tmp_path: Path
) -> None:
    """`cutaway serve` says in one line which file of which variable it is; TorchServe has not written to its log."""
    (tmp_path / "store").mkdir()
    package(tmp_path / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    usable = {"CUTAWAY_TLS_CERTIFICATE": str(pki["server"]), "CUTAWAY_TLS_KEY": str(pki["server-key"])}
    command = [sys.executable, "-m", "cutaway.cli", "serve", "--model-store", str(tmp_path / "store")]
    command += ["--log-dir", str(tmp_path / "logs"), "--address", "127.0.0.1:0"]
    ended = subprocess.run(
        command, env={**os.environ, **usable, variable: str(file)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert variable in line
    assert str(file) in line
    assert not ended.stdout
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["--engine=embedded", "--workers=1"])
def test_a_served_store_is_guarded(backend: str, pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cutaway serve` takes all of it from the environment, over TorchServe as well as in its own process, and says
    what is open where others can reach it."""
    (tmp_path / "store").mkdir()
    package(tmp_path / "store", "tiny", f"{ADAPTERS / 'tiny_adapter.py'}:Tiny")
    tokens = write(tmp_path / "tokens.toml", entry("all", {"*": EVERY}), entry("user", {"tiny": ["predict"]}))
    x = {"x": np.ones((1, 3), np.float32)}
    monkeypatch.setenv("CUTAWAY_TOKENS", str(tokens))
    with serving(tmp_path / "store", tmp_path / "logs", backend, "--address", "0.0.0.0:0") as server:
        assert [line for line in server.logged if "listening beyond" in line] == [
            exposure_warning(Settings(), server.address)
        ]
        address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
        for stream in (False, True):
            with ca.Client(address) as client, pytest.raises(ca.Unauthenticated):
                client.inspect("tiny", x, stream=stream)
            with ca.Client(address, token="user") as client:
                assert client.inspect("tiny", x, stream=stream).predictions["output"].shape == (1, 2)
                with pytest.raises(ca.PermissionDenied):
                    client.inspect("tiny", x, captures=["linear"], stream=stream)
            with ca.Client(address, token="all") as client:
                assert client.inspect("tiny", x, captures=["linear"], stream=stream).captures
                assert client.get_model("tiny").modules
        write(tokens, entry("user", {"tiny": EVERY}))
        for stream in (False, True):
            with ca.Client(address, token="user") as client:
                assert client.inspect("tiny", x, captures=["linear"], stream=stream).captures


@pytest.mark.parametrize("scopes", ["", "admin", "predict,admin", "predict inspect"])
def test_a_scope_that_is_none_makes_no_token(scopes: str) -> None:
    """A slip of the pen is told, and nothing is printed that could be used."""
    made = CliRunner().invoke(application.app, ["token", "x", "--models", "*", "--scopes", scopes])
    assert made.exit_code == 2
    assert "sha256" not in made.output
