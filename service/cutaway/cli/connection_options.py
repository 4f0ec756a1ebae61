"""Options for the connection to a server: address, timeout, token and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cutaway.client.sync_client import Client
from cutaway.errors import DeadlineExceeded, Reason, Unavailable, error
from cutaway.trust import Tls

Address = Annotated[str, typer.Option(metavar="HOST:PORT", envvar="CUTAWAY_ADDRESS", help="The server's address.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the reply.")]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        envvar="CUTAWAY_TOKEN",
        help="The caller's token. Other users of this machine can read it here, but not in the environment.",
    ),
]
Secure = Annotated[bool, typer.Option("--tls", help="Connect with TLS; the system's certificates verify the server.")]
Ca = Annotated[
    Path | None,
    typer.Option(
        metavar="PEM", exists=True, dir_okay=False, help="Connect with TLS; these certificates verify the server."
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(metavar="PEM", exists=True, dir_okay=False, help="The client's certificate, for mutual TLS."),
]
Key = Annotated[
    Path | None, typer.Option(metavar="PEM", exists=True, dir_okay=False, help="The private key of --certificate.")
]

DEFAULT_ADDRESS = "127.0.0.1:50051"


@contextmanager
def connect(address: str, timeout: float, token: str | None, tls: bool | Tls) -> Iterator[Client]:
    """Yields a client; if no server replies, or not in time, the error says what to do."""
    try:
        with Client(address, timeout=timeout, token=token or None, tls=tls) as client:
            yield client
    except Unavailable as failure:
        if failure.reason != Reason.SERVER_UNREACHABLE:
            raise
        advice = "start one with: cutaway serve --model-store DIR"
        raise error(Reason.SERVER_UNREACHABLE, f"{failure.message} at {address}; {advice}") from None
    except DeadlineExceeded as failure:
        message = f"no reply within {timeout:g} s ({failure.message}); --timeout waits longer"
        raise DeadlineExceeded(failure.reason, message) from None


def tls_settings(secure: bool, ca: Path | None, certificate: Path | None, key: Path | None) -> bool | Tls:
    """Returns the client's TLS settings; each of the files implies ``--tls``."""
    return Tls(ca, certificate, key) if ca or certificate or key else secure
