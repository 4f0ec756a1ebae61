"""What a caller may do with each model, and what a request needs.

A request is refused before a worker gets it, so that the refusal reveals nothing about the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from cutaway.client.transport import parse_model
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.models.catalog import Catalog
from cutaway.module_globs import glob_matcher, is_glob
from cutaway.results import ModelName
from cutaway.str_enum import StrEnum
from cutaway.v1 import inspection_pb2


class Scope(StrEnum):
    """What a token allows for a model."""

    PREDICT = "predict"
    """Predictions."""
    INSPECT = "inspect"
    """Captures, gradients, attributions and the module tree."""
    EDIT = "edit"
    """Edits of activations and gradients."""


@dataclass(frozen=True)
class Permissions:
    """What a caller may do with one model.

    Attributes:
        scopes: the allowed kinds of requests.
        layers: globs of the layers that the caller may see and edit; None for all layers.
    """

    scopes: frozenset[Scope]
    layers: tuple[str, ...] | None = None

    @property
    def unredacted(self) -> bool:
        """Whether replies need no redaction."""
        return Scope.INSPECT in self.scopes and self.layers is None

    @property
    def unrestricted(self) -> bool:
        """Whether no request can be refused."""
        return self.unredacted and self.scopes == frozenset(Scope)

    def can_see(self, layer: str) -> bool:
        """Returns whether a layer, or every layer that a glob may match, may be shown to the caller."""
        return Scope.INSPECT in self.scopes and self.includes(layer)

    def includes(self, layer: str) -> bool:
        """Returns whether the layer is one of those that the token lists."""
        return self.layers is None or matches(self.layers, layer)

    def require(self, scope: Scope, field: str) -> None:
        """Raises ``SCOPE_MISSING`` for ``field`` unless ``scope`` is allowed."""
        if scope not in self.scopes:
            raise error(Reason.SCOPE_MISSING, f"this token may not {scope} this model", field)

    def check(self, request: inspection_pb2.InspectRequest) -> None:
        """Refuses a request that needs more scopes, or names other layers, than are allowed.

        Raises:
            PermissionDenied: ``SCOPE_MISSING`` or ``LAYER_HIDDEN``, with the field.
        """
        for field, value in request.ListFields():
            self.require(REQUIRED_SCOPES[field.name], field.name)
            if field.name in _FIELDS_WITH_LAYERS:
                for index, message in enumerate(value) if field.is_repeated else [(None, value)]:
                    path = field.name if index is None else f"{field.name}[{index}]"
                    self._check_layers(message, path, edits=field.name == "edits")

    def _check_layers(self, message: Message, path: str, *, edits: bool) -> None:
        for field, layer in layer_references(message, path):
            if not edits:
                self.require(Scope.INSPECT, field)
            if not self.includes(layer):
                raise error(Reason.LAYER_HIDDEN, "this token may not see or edit this layer", field)


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
}
"""The scope that each field of `cutaway.v1.InspectRequest` needs. A layer that is named outside of edits needs
`Scope.INSPECT` as well."""

_FIELDS_WITH_LAYERS = ("target", "captures", "attributions", "edits")

LAYER_FIELDS = ("module", "layer", "further_layers", "op", "parameter")
"""The fields of a request that name a layer, or an operator or parameter of a layer."""


def layer_references(message: Message, path: str) -> Iterator[tuple[str, str]]:
    """Yields every layer that ``message``, the field at ``path``, names: the path of the naming field, and the name or
    glob. Operators and parameters count as their layer."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if field.name in LAYER_FIELDS:
            yield from ((here, layer_of(name, field.name)) for name in (value if field.is_repeated else [value]))
        elif field.name == "rules":  # of LRP, by layer
            yield from ((here, layer) for layer in value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for child in value if field.is_repeated else [value]:
                yield from layer_references(child, here)


def matches(globs: Sequence[str], layer: str) -> bool:
    """Returns whether ``globs`` allow ``layer``: a name that matches one of them, or a glob that is one of them.

    Any other glob is not allowed: whether another glob covers all its matches depends on the model.
    """
    if "**" in globs:
        return True
    if is_glob(layer):
        return layer in globs
    return layer != "" and any(glob_matcher(glob)(layer) for glob in globs)


def layer_of(name: str, kind: str) -> str:
    """Returns the layer that an operator (``conv1:relu#0``), a parameter (``conv1.weight``) or a module belongs to;
    ``""`` is the model itself.

    Args:
        name: address of the operator, or name of the parameter or module.
        kind: ``op``, ``parameter``, or any other word for a module.
    """
    if kind == "op":
        return name.rpartition(":")[0]
    return name.rpartition(".")[0] if kind == "parameter" else name


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

    def has_scope(self, scope: Scope) -> bool:
        """Returns whether the caller has ``scope`` for any model."""
        return any(scope in permissions.scopes for permissions in self.permissions.values())

    def resolve(self, model: str, catalog: Catalog) -> tuple[ModelName, Permissions]:
        """Returns the model that a request names, and the caller's permissions for it.

        Raises:
            CutawayError: as `Catalog.resolve`; a model without permissions looks like one that does not exist.
        """
        permissions = self.permissions_for(parse_model(model)[0])
        if permissions is None:
            raise _no_such_model()
        try:
            return catalog.resolve(model), permissions
        except CutawayError as failure:
            if self is ANONYMOUS:
                raise
            if failure.reason == Reason.MODEL_NOT_FOUND:  # the catalog's message names other models
                raise _no_such_model() from None
            if not permissions.unredacted:  # the reason why a model did not load may name layers
                failure.message = "the model, or this version of it, is not served"
            raise


def _no_such_model() -> CutawayError:
    return error(Reason.MODEL_NOT_FOUND, "no model of that name is served to this token", "model")


ANONYMOUS = Caller("", {"*": Permissions(frozenset(Scope))})
"""Every caller of a gateway without a token file."""
