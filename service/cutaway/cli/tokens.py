"""``cutaway token``: a new token, and what the server's token file is to say of it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Annotated

import typer

from cutaway.cli import screen

_SCOPES = ("predict", "inspect", "edit")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _scopes(text: str) -> str:
    unknown = [word for word in _words(text) if word not in _SCOPES]
    if unknown or not _words(text):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(_SCOPES)}, nor several with commas between")
    return text


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will have it.", show_default=False)],
    models: Annotated[str, typer.Option(metavar="NAME,...", help="Of which models; '*' is all of them.")],
    scopes: Annotated[
        str,
        typer.Option(metavar="SCOPE,...", callback=_scopes, help="What it allows: predict, inspect, edit."),
    ] = "predict",
    layers: Annotated[
        str, typer.Option(metavar="GLOB,...", help="Which layers it may see and edit; all by default.")
    ] = "",
    days: Annotated[float | None, typer.Option(metavar="N", min=0, help="For how long it holds.")] = None,
) -> None:
    """Make a token: it goes to stderr, once; its entry in the token file, to stdout.

    For example: cutaway token dashboard --models digits --scopes predict,inspect >> tokens.toml
    """
    made = secrets.token_urlsafe(32)
    for line in _entry(name, made, _words(models), _words(scopes), _words(layers), days):
        screen.say(line)
    typer.echo(made, err=True)


def _entry(
    name: str, made: str, models: Sequence[str], scopes: Sequence[str], layers: Sequence[str], days: float | None
) -> Iterator[str]:
    yield f"[tokens.{_text(name)}]"
    yield f"sha256 = {_text(hashlib.sha256(made.encode()).hexdigest())}"
    yield f"models = {{ {', '.join(f'{_text(model)} = {_texts(scopes)}' for model in models)} }}"
    if layers:
        yield f"layers = {_texts(layers)}"
    if days is not None:
        until = datetime.now(timezone.utc) + timedelta(days=days)
        yield f"expires = {until.isoformat(timespec='seconds')}"


def _text(words: str) -> str:
    return json.dumps(words)  # also a string of TOML


def _texts(words: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, words))}]"
