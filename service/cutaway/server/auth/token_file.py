"""The token file, which lists the callers of the gateway with their permissions. It is read again after it changes.

    [tokens.dashboard]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    models = { digits = ["predict", "inspect"], "*" = ["predict"] }
    expires = 2027-01-01T00:00:00Z   # optional

A token is 32 random bytes, so one plain SHA-256 hides it: it cannot be guessed, and every call pays for the hash.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tomli
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from cutaway.client.trust import AUTHORIZATION
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.server.auth.authorization import ANONYMOUS, Caller, Permissions, Scope
from cutaway.server.file_watch import ReloadedFiles


class TokenEntry(BaseModel):
    """One token of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    models: dict[str, frozenset[Scope]]
    expires: AwareDatetime | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_layers(cls, entry: Any) -> Any:
        """Refuses the lists of layers of earlier versions: without its list, the token would allow more."""
        if isinstance(entry, dict) and "layers" in entry:
            what = "the key `layers` is gone, and a token with `inspect` or `edit` reaches every layer"
            raise ValueError(f"{what}: remove the key, or these scopes")
        return entry

    @cached_property
    def permissions(self) -> Mapping[str, Permissions]:
        """The permissions by model."""
        return {model: Permissions(scopes) for model, scopes in self.models.items()}

    @property
    def expired(self) -> bool:
        """Whether the token is no longer valid."""
        return self.expires is not None and self.expires <= datetime.now(timezone.utc)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: dict[str, TokenEntry]


class TokenFile:
    """An authenticator of callers by the tokens in a TOML file.

    Raises:
        CutawayError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._file = ReloadedFiles("the token file", [path], partial(read, path))

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Returns the caller of a call with this ``metadata``.

        Raises:
            Unauthenticated: ``TOKEN_REQUIRED`` or ``TOKEN_INVALID``.
        """
        self._file.refresh()
        values = [value for key, value in metadata if key == AUTHORIZATION]
        if not values:
            raise error(Reason.TOKEN_REQUIRED, "send a token, as the metadata authorization: Bearer TOKEN")
        hashed = sha256(_token(values[0])).hexdigest()
        # Every entry is compared, each in constant time: the duration reveals nothing about the tokens.
        entries = [item for item in self._file.value.items() if hmac.compare_digest(item[1].sha256, hashed)]
        for name, entry in entries:
            if len(values) == 1 and not entry.expired:
                return Caller(name, entry.permissions)
        raise error(Reason.TOKEN_INVALID, "the token is wrong, or has expired")


Authenticator: TypeAlias = Callable[[Iterable[tuple[str, str | bytes]]], Caller]
"""A function that returns the caller of a call with that metadata; raises as `TokenFile.caller`."""


def authenticator(path: Path | None) -> Authenticator:
    """Returns the authenticator for the token file ``path``; without one, every caller is `ANONYMOUS`."""
    return TokenFile(path).caller if path else lambda _: ANONYMOUS


def read(path: Path) -> Mapping[str, TokenEntry]:
    """Returns the tokens in a file, by name.

    Raises:
        InvalidArgument: ``INVALID_VALUE``: the file is missing, is not TOML or breaks the schema.
    """
    try:
        entries = _File.model_validate(tomli.loads(path.read_text("utf-8"))).tokens
    except OSError as failure:
        raise _invalid(path, failure.strerror or "cannot be read") from None
    except ValidationError as failure:
        first = failure.errors(include_input=False)[0]
        what = first["msg"].removeprefix("Value error, ")
        raise _invalid(path, f"{'.'.join(map(str, first['loc']))}: {what}") from None
    except ValueError as failure:  # from TOML or UTF-8
        raise _invalid(path, str(failure)) from None
    if len({entry.sha256 for entry in entries.values()}) < len(entries):
        raise _invalid(path, "two entries have the same token")
    return entries


def _invalid(path: Path, why: str) -> CutawayError:
    return error(Reason.INVALID_VALUE, f"{path}: {why}", "CUTAWAY_TOKENS")


def _token(value: str | bytes) -> bytes:
    """Returns the token after ``Bearer``; empty for another scheme."""
    text = value if isinstance(value, bytes) else value.encode()
    scheme, _, token = text.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
