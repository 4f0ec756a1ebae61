"""``cutaway token``: a new token, and its entry for the server's token file."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated

import typer

from cutaway.cli import documents, json_output
from cutaway.cli.console_output import print_line
from cutaway.cli.json_output import AsJson

_SCOPES = ("predict", "inspect", "edit")


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _check_scopes(text: str) -> str:
    if not _split(text) or not set(_split(text)) <= set(_SCOPES):
        raise typer.BadParameter(f"{text!r} must be one or several of {', '.join(_SCOPES)}, with commas between them")
    return text


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the token's holder.", show_default=False)],
    models: Annotated[
        str, typer.Option(metavar="NAME,...", help="The models that the token is for; '*' is all of them.")
    ],
    scopes: Annotated[
        str,
        typer.Option(
            metavar="SCOPE,...", callback=_check_scopes, help="What the token allows: predict, inspect, edit."
        ),
    ] = "predict",
    layers: Annotated[
        str, typer.Option(metavar="GLOB,...", help="The layers that it may see and edit; all by default.")
    ] = "",
    days: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="After how many days the token expires; never by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token: the token is printed to stderr, its entry for the token file to stdout; with --json, both to
    stdout.

    For example: cutaway token dashboard --models digits --scopes predict,inspect >> tokens.toml
    """
    secret = secrets.token_urlsafe(32)
    entry = list(_entry(name, secret, _split(models), _split(scopes), _split(layers), days))
    if as_json:
        json_output.print_json(documents.Token(secret, "\n".join(entry)))
        return
    for line in entry:
        print_line(line)
    typer.echo(secret, err=True)


def _entry(
    name: str, secret: str, models: Sequence[str], scopes: Sequence[str], layers: Sequence[str], days: float | None
) -> Iterator[str]:
    """Yields the lines of the token's entry; of the token itself they have only the SHA-256."""
    yield f"[tokens.{_string(name)}]"
    yield f"sha256 = {_string(hashlib.sha256(secret.encode()).hexdigest())}"
    yield f"models = {{ {', '.join(f'{_string(model)} = {_strings(scopes)}' for model in models)} }}"
    if layers:
        yield f"layers = {_strings(layers)}"
    if days is not None:
        expiry = datetime.now(timezone.utc) + timedelta(days=days)
        yield f"expires = {expiry.isoformat(timespec='seconds')}"


def _string(text: str) -> str:
    return json.dumps(text)  # a JSON string is also a TOML string


def _strings(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_string, texts))}]"
