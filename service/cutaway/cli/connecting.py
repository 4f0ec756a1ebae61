"""The options that say where the server is, who asks, and whom to trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cutaway.client import Client
from cutaway.errors import DeadlineExceeded, Reason, Unavailable, error
from cutaway.trust import Tls

Address = Annotated[str, typer.Option(metavar="HOST:PORT", envvar="CUTAWAY_ADDRESS", help="Where the server listens.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the answer.")]
Token = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", envvar="CUTAWAY_TOKEN", help="Says who asks; better in the environment than here."),
]
Secure = Annotated[bool, typer.Option("--tls", help="Connect with TLS, to a server whom the system trusts.")]
Ca = Annotated[
    Path | None,
    typer.Option(metavar="PEM", exists=True, dir_okay=False, help="Connect with TLS, and trust these certificates."),
]
Certificate = Annotated[
    Path | None,
    typer.Option(metavar="PEM", exists=True, dir_okay=False, help="A certificate of one's own, if the server asks."),
]
Key = Annotated[
    Path | None, typer.Option(metavar="PEM", exists=True, dir_okay=False, help="The private key of --certificate.")
]

HERE = "127.0.0.1:50051"


@contextmanager
def asking(address: str, timeout: float, token: str | None, tls: bool | Tls) -> Iterator[Client]:
    """A client for the block; where no server answers, or not in time, the error says what to do."""
    try:
        with Client(address, timeout=timeout, token=token or None, tls=tls) as client:
            yield client
    except Unavailable as failure:
        if failure.reason != Reason.SERVER_UNREACHABLE:
            raise
        advice = "start one with: cutaway serve --model-store DIR"
        raise error(Reason.SERVER_UNREACHABLE, f"{failure.message} at {address}; {advice}") from None
    except DeadlineExceeded as failure:
        what = f"no answer within {timeout:g} s ({failure.message}); --timeout waits longer"
        raise DeadlineExceeded(failure.reason, what) from None


def trusting(secure: bool, ca: Path | None, certificate: Path | None, key: Path | None) -> bool | Tls:
    """What the options say about TLS: any file asks for it."""
    return Tls(ca, certificate, key) if ca or certificate or key else secure
