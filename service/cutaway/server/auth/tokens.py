"""The token file, which lists the callers of the gateway with their permissions. It is read again after it changes.

    [tokens.dashboard]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    models = { digits = ["predict", "inspect"], "*" = ["predict"] }
    expires = 2027-01-01T00:00:00Z   # optional

A token is 32 random bytes, so one plain SHA-256 hides it: it cannot be guessed, and every call pays for the hash.
"""

from __future__ import annotations

import hmac
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tomli
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from cutaway.client.transport import parse_model
from cutaway.client.trust import AUTHORIZATION
from cutaway.contract.errors import CutawayError, Reason, changed, error
from cutaway.contract.results import ModelName, UnservedArchive
from cutaway.contract.values import StrEnum
from cutaway.server.file_watch import ReloadedFiles
from cutaway.server.model_store import Catalog
from cutaway.v1 import inspection_pb2

# The permissions of callers by model, and the scopes that a request needs.
#
# A request that needs more scopes than its caller has is refused before a worker gets it. Only callers with
# `Scope.INSPECT` may know the names of a model's modules: for others, errors that could name them have no details.


class Scope(StrEnum):
    """A kind of request that a token allows for a model."""

    PREDICT = "predict"
    """Predictions."""
    INSPECT = "inspect"
    """Captures, gradients, attributions and the module tree."""
    EDIT = "edit"
    """Edits of activations and gradients."""


_ALL = frozenset(Scope)


@dataclass(frozen=True)
class Permissions:
    """The permissions of a caller for one model.

    Attributes:
        scopes: the allowed kinds of requests.
    """

    scopes: frozenset[Scope]

    @property
    def unrestricted(self) -> bool:
        """Whether no request can be refused."""
        return self.scopes == _ALL

    def require(self, scope: Scope, field: str) -> None:
        """Raises ``SCOPE_MISSING`` for ``field`` unless ``scope`` is allowed."""
        if scope not in self.scopes:
            raise error(Reason.SCOPE_MISSING, f"this token may not {scope} this model", field)

    def check(self, request: inspection_pb2.InspectRequest) -> None:
        """Refuses a request that needs more scopes than are allowed; its input may be left out.

        Raises:
            PermissionDenied: ``SCOPE_MISSING``, with the field.
        """
        for field, _ in request.ListFields():
            self.require(REQUIRED_SCOPES[field.name], field.name)
        if request.target.HasField("neuron"):
            self.require(Scope.INSPECT, "target.neuron")

    def redact(self, failure: CutawayError) -> None:
        """Replaces the message of an error that could name modules, if the caller lacks `Scope.INSPECT`.

        The meaning of the error's reason takes the place of its message.
        """
        if Scope.INSPECT not in self.scopes and failure.reason not in _WITHOUT_MODULES:
            reason = Reason.__members__.get(failure.reason)
            meaning = reason.meaning if reason else "The reason is unknown."
            failure.message = f"{meaning} This token may not see details."


_WITHOUT_MODULES = frozenset(
    {
        *(Reason.MALFORMED_REQUEST, Reason.UNKNOWN_FIELD, Reason.SCOPE_MISSING),
        *(Reason.MODEL_NOT_FOUND, Reason.VERSION_NOT_FOUND),
        *(Reason.INPUT_MISSING, Reason.INPUT_UNKNOWN, Reason.INPUT_EMPTY, Reason.INPUT_DTYPE, Reason.INPUT_SHAPE),
        Reason.INPUT_FEATURES,
        *(Reason.BATCH_MISMATCH, Reason.TENSOR_SIZE, Reason.RAW_UNSUPPORTED, Reason.TEXT_TOO_LONG),
        *(Reason.OUTPUT_NOT_FOUND, Reason.TARGET_RANGE, Reason.TARGET_MISMATCH, Reason.TARGET_SHAPE),
        *(Reason.REPLY_TOO_LARGE, Reason.REQUEST_TOO_LARGE, Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED),
    }
)
"""Reasons whose messages are about inputs and outputs only, and never name a module."""


REQUIRED_SCOPES: Mapping[str, Scope] = {
    "model": Scope.PREDICT,  # set in every request
    "tensors": Scope.PREDICT,
    "raw": Scope.PREDICT,
    "arguments": Scope.PREDICT,
    "target": Scope.PREDICT,
    "options": Scope.PREDICT,
    "check": Scope.PREDICT,  # has no effect without attributions
    "captures": Scope.INSPECT,
    "input_gradients": Scope.INSPECT,
    "attributions": Scope.INSPECT,
    "attribution_errors_in_place": Scope.PREDICT,  # has no effect without attributions
    "explain_if": Scope.INSPECT,
    "edits": Scope.EDIT,
    "compare": Scope.EDIT,
    "generate": Scope.PREDICT,
    "sweep": Scope.EDIT,
    "direct": Scope.INSPECT,
    "attacks": Scope.INSPECT,
    "concepts": Scope.INSPECT,
    "influence": Scope.INSPECT,
    "agreement": Scope.PREDICT,  # has no effect without attributions
    "counterfactual": Scope.INSPECT,
}
"""The scopes that the fields of `cutaway.v1.InspectRequest` need. A neuron as the target needs `Scope.INSPECT` too."""


@dataclass(frozen=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: the name of the token's entry in the token file; empty without a token file.
        permissions: by the model's name; ``*`` stands for every other model.
    """

    name: str
    permissions: Mapping[str, Permissions]

    def permissions_for(self, model: str) -> Permissions | None:
        """Returns the permissions for ``model``; None if there are none."""
        permissions = self.permissions.get(model, self.permissions.get("*"))
        return permissions if permissions and permissions.scopes else None

    def visible_models(self, catalog: Catalog) -> list[ModelName]:
        """Returns the models of ``catalog`` for which the caller has any permission."""
        return [name for name in catalog.all() if self.permissions_for(name.model)]

    def visible_archives(self, catalog: Catalog) -> list[UnservedArchive]:
        """Returns the archives that are not served of models for which the caller has any permission.

        A caller without the scope ``inspect`` for a model does not read the words, which quote its code.
        """
        known = ((item, self.permissions_for(item.model or Path(item.archive).stem)) for item in catalog.unserved)
        return [
            item if Scope.INSPECT in permissions.scopes else replace(item, why="")
            for item, permissions in known
            if permissions
        ]

    def has_scope(self, scope: Scope) -> bool:
        """Returns whether the caller has ``scope`` for any model."""
        return any(scope in permissions.scopes for permissions in self.permissions.values())

    def require_model(self) -> None:
        """Refuses a caller who may call no model.

        Raises:
            CutawayError: as a call of any model.
        """
        if not any(permissions.scopes for permissions in self.permissions.values()):
            raise _no_such_model()
        if not self.has_scope(Scope.PREDICT):
            raise error(Reason.SCOPE_MISSING, "this token may predict no model", "model")

    def resolve(self, model: str, catalog: Catalog) -> tuple[ModelName, Permissions]:
        """Returns the model that a request names, and the caller's permissions for it.

        Raises:
            CutawayError: as `Catalog.resolve`; a model without permissions looks like one that does not exist.
        """
        permissions = self.permissions_for(parse_model(model)[0])
        if permissions is None:
            raise _no_such_model()
        try:
            with changed(permissions.redact):
                return catalog.resolve(model), permissions
        except CutawayError as failure:
            if failure.reason == Reason.MODEL_NOT_FOUND and self is not ANONYMOUS:
                raise _no_such_model() from None  # the catalog's message names other models
            raise


def _no_such_model() -> CutawayError:
    return error(Reason.MODEL_NOT_FOUND, "no model of that name is served to this token", "model")


ANONYMOUS = Caller("", {"*": Permissions(_ALL)})
"""The caller of all calls to a gateway without a token file."""


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
        InvalidArgument: ``INVALID_VALUE``: the file is missing, is not TOML, breaks the schema, or all may write it.
    """
    try:
        if path.stat().st_mode & stat.S_IWOTH:
            raise _invalid(path, f"every user of this machine can add a token to it: chmod o-w {path}")
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
