"""The token file: who may call the front door, and what each of them may do. It is read again whenever it changes.

    [tokens.dashboard]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    models = { digits = ["predict", "inspect"], "*" = ["predict"] }
    layers = ["conv*"]               # optional: what may be seen and edited; all, where it is left out
    expires = 2027-01-01T00:00:00Z   # optional

Tokens are 32 random bytes, so that one plain hash hides them: what nobody can guess needs no slow hash, and each call
pays for it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeAlias

import structlog
import tomli
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.access import ANYONE, Caller, Grant, Scope
from cutaway.gateway.looks import look
from cutaway.trust import AUTHORIZATION

log = structlog.get_logger(__name__)


class Entry(BaseModel):
    """One token, as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    models: dict[str, frozenset[Scope]]
    layers: tuple[str, ...] | None = None
    expires: AwareDatetime | None = None

    def caller(self, name: str) -> Caller:
        """Whoever has this token."""
        return Caller(name, {model: Grant(scopes, self.layers) for model, scopes in self.models.items()})


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: dict[str, Entry]


class TokenFile:
    """The tokens in a file, as they are now.

    Args:
        path: a TOML file.

    Raises:
        CutawayError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look = look(path)
        self._entries = read(path)
        self._callers = _callers(self._entries)

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Who sends a call with this ``metadata``.

        Raises:
            Unauthenticated: ``TOKEN_REQUIRED`` or ``TOKEN_INVALID``.
        """
        self._refresh()
        given = [value for key, value in metadata if key == AUTHORIZATION]
        if not given:
            raise error(Reason.TOKEN_REQUIRED, "send a token, as the metadata authorization: Bearer TOKEN")
        found = self._holder(_token(given[0])) if len(given) == 1 else None
        if found is None:
            raise error(Reason.TOKEN_INVALID, "the token is wrong, or has expired")
        return self._callers[found]

    def _holder(self, token: bytes) -> str | None:
        """Whose token it is. Every entry is compared, each in constant time: how long it takes tells nothing."""
        hashed = sha256(token).hexdigest()
        held = [name for name, entry in self._entries.items() if hmac.compare_digest(entry.sha256, hashed)]
        live = [name for name in held if _lives(self._entries[name])]
        return live[0] if live else None

    def _refresh(self) -> None:
        """Read the file again if it is another one. While a new one is broken, the old tokens hold."""
        now = look(self._path)
        if now == self._look:
            return
        self._look = now
        try:
            self._entries = read(self._path)
        except CutawayError as failure:
            log.error("the token file is broken: the tokens from before stay", why=str(failure))
            return
        self._callers = _callers(self._entries)
        log.info("read the token file again", tokens=len(self._entries))


class Everybody:
    """In place of a token file, where there is none."""

    def caller(self, _: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Anyone."""
        return ANYONE


Doorkeeper: TypeAlias = TokenFile | Everybody


def doorkeeper(path: Path | None) -> Doorkeeper:
    """Whoever tells callers apart: by the tokens in the file ``path``, or not at all."""
    return TokenFile(path) if path else Everybody()


def read(path: Path) -> Mapping[str, Entry]:
    """The tokens in a file, by name.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: it is not there, is no TOML, or says something else than it may.
    """
    try:
        entries = _File.model_validate(tomli.loads(path.read_text("utf-8"))).tokens
    except OSError as failure:
        raise _broken(path, failure.strerror or "cannot be read") from None
    except ValidationError as failure:
        first = failure.errors(include_input=False)[0]
        raise _broken(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as failure:  # of TOML, or UTF-8
        raise _broken(path, str(failure)) from None
    if len({entry.sha256 for entry in entries.values()}) < len(entries):
        raise _broken(path, "two entries have the same token")
    return entries


def _broken(path: Path, why: str) -> CutawayError:
    return error(Reason.INVALID_VALUE, f"{path}: {why}", "CUTAWAY_TOKENS")


def _callers(entries: Mapping[str, Entry]) -> dict[str, Caller]:
    return {name: entry.caller(name) for name, entry in entries.items()}


def _token(value: str | bytes) -> bytes:
    """What follows ``Bearer``; nothing, where the value is of another scheme."""
    text = value if isinstance(value, bytes) else value.encode()
    scheme, _, token = text.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _lives(entry: Entry) -> bool:
    return entry.expires is None or datetime.now(timezone.utc) < entry.expires
