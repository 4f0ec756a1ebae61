"""Options for the connection to a server: address, timeout, token and TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.client.client import Client
from cutaway.client.trust import Tls
from cutaway.contract.errors import DeadlineExceeded, Reason, Unavailable, error


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `_connect` to a command, whose first argument is the client that they connect."""
    _, *own = signature(command, eval_str=True).parameters.values()
    options = signature(_connect, eval_str=True).parameters

    @wraps(command)
    def run(**arguments: Any) -> None:
        with _connect(**{name: arguments.pop(name) for name in options}) as client:
            command(client, **arguments)

    run.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]  # what typer reads
    return run


@contextmanager
def _connect(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="CUTAWAY_ADDRESS", help="The server's address.")
    ] = "127.0.0.1:50051",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the reply.")] = 60.0,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="CUTAWAY_TOKEN",
            help="The caller's token. Other users of this machine can read it here, but not in the environment.",
        ),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Connect with TLS; the system's certificates verify the server.")
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM", exists=True, dir_okay=False, help="Connect with TLS; these certificates verify the server."
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="PEM", exists=True, dir_okay=False, help="The client's certificate, for mutual TLS."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="PEM", exists=True, dir_okay=False, help="The private key of --certificate.")
    ] = None,
) -> Iterator[Client]:
    """Yields a client; if no server replies, or not in time, the error says what to do. Each file implies ``--tls``."""
    trusted = Tls(ca, certificate, key) if ca or certificate or key else tls
    try:
        with Client(address, timeout=timeout, token=token or None, tls=trusted) as client:
            yield client
    except Unavailable as failure:
        if failure.reason != Reason.SERVER_UNREACHABLE:
            raise
        advice = "start one with: cutaway serve --model-store DIR"
        raise error(Reason.SERVER_UNREACHABLE, f"{failure.message} at {address}; {advice}") from None
    except DeadlineExceeded as failure:
        message = f"no reply within {timeout:g} s ({failure.message}); --timeout waits longer"
        raise DeadlineExceeded(failure.reason, message) from None
