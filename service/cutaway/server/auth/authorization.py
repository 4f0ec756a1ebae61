"""What a caller may do with each model, and what a request needs.

A request that needs more scopes is refused before a worker gets it. The layers that a caller may name are sent with the
request: only the worker knows which layers a name, a glob or an alias stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.client.transport import parse_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.module_globs import GlobLists, in_every_list
from cutaway.contract.results import ModelName
from cutaway.contract.values import StrEnum
from cutaway.contract.wire.layer_references import layer_references
from cutaway.server.model_store import Catalog
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
        layers: the layers that the caller may see and edit.
    """

    scopes: frozenset[Scope]
    layers: GlobLists = ()

    @property
    def unredacted(self) -> bool:
        """Whether replies need no redaction."""
        return Scope.INSPECT in self.scopes and not self.layers

    @property
    def unrestricted(self) -> bool:
        """Whether no request can be refused."""
        return self.unredacted and self.scopes == frozenset(Scope)

    def can_see(self, layer: str) -> bool:
        """Returns whether the layer with the own name ``layer`` may be shown to the caller."""
        return Scope.INSPECT in self.scopes and in_every_list(self.layers, layer)

    def require(self, scope: Scope, field: str) -> None:
        """Raises ``SCOPE_MISSING`` for ``field`` unless ``scope`` is allowed."""
        if scope not in self.scopes:
            raise error(Reason.SCOPE_MISSING, f"this token may not {scope} this model", field)

    def check(self, request: inspection_pb2.InspectRequest) -> None:
        """Refuses a request that needs more scopes than are allowed. Whether it may name the layers that it names, the
        worker decides, which knows them.

        Raises:
            PermissionDenied: ``SCOPE_MISSING``, with the field.
        """
        for field, _ in request.ListFields():
            self.require(REQUIRED_SCOPES[field.name], field.name)
        for reference in layer_references(request):
            if not reference.field.startswith("edits["):
                self.require(Scope.INSPECT, reference.field)


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
