"""Who a caller is, and what a question needs: a caller of the front door may do what a token says, and no more.

A question is refused here, before a worker sees it, so that nothing about the model decides what the refusal says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.catalog import Catalog
from cutaway.gateway.places import allows, owner
from cutaway.results import ModelName
from cutaway.routes import parse_model
from cutaway.v1 import inspection_pb2
from cutaway.word import Word


class Scope(Word):
    """What a token allows, of one model."""

    PREDICT = "predict"
    """To ask what the model returns."""
    INSPECT = "inspect"
    """To look inside: captures, gradients, explanations, the module tree."""
    EDIT = "edit"
    """To change what flows through the model."""


@dataclass(frozen=True)
class Grant:
    """What a caller may do with one model.

    Attributes:
        scopes: what may be asked.
        layers: globs of the layers that may be seen and edited; None for all of them.
    """

    scopes: frozenset[Scope]
    layers: tuple[str, ...] | None = None

    @property
    def sees_all(self) -> bool:
        """Whether nothing of a reply has to be withheld."""
        return Scope.INSPECT in self.scopes and self.layers is None

    @property
    def whole(self) -> bool:
        """Whether there is nothing that may be refused."""
        return self.sees_all and self.scopes == frozenset(Scope)

    def sees(self, layer: str) -> bool:
        """Whether the layer of this name, or all that a glob may stand for, may be shown."""
        return Scope.INSPECT in self.scopes and self.reaches(layer)

    def reaches(self, layer: str) -> bool:
        """Whether this layer is among those that the token lists."""
        return self.layers is None or allows(self.layers, layer)

    def refuse(self, scope: Scope, field: str) -> None:
        """Refuse what needs ``scope``, where it is not granted.

        Raises:
            PermissionDenied: ``SCOPE_MISSING``.
        """
        if scope not in self.scopes:
            raise error(Reason.SCOPE_MISSING, f"this token may not {scope} this model", field)

    def refuse_question(self, request: inspection_pb2.InspectRequest) -> None:
        """Refuse what is asked beyond the scopes, or of layers that are not shown.

        Raises:
            PermissionDenied: ``SCOPE_MISSING`` or ``LAYER_HIDDEN``, with the field.
        """
        for field, value in request.ListFields():
            self.refuse(NEEDS[field.name], field.name)
            if field.name in _WITH_LAYERS:
                for index, message in enumerate(value) if field.is_repeated else [(None, value)]:
                    path = field.name if index is None else f"{field.name}[{index}]"
                    self._refuse_layers(message, path, edits=field.name == "edits")

    def _refuse_layers(self, message: Message, path: str, *, edits: bool) -> None:
        for mention in mentions(message, path):
            if not edits:
                self.refuse(Scope.INSPECT, mention.field)
            if not self.reaches(mention.layer):
                raise error(Reason.LAYER_HIDDEN, "this token may not see or change this layer", mention.field)


NEEDS: Mapping[str, Scope] = {
    "model": Scope.PREDICT,  # which every question names
    "tensors": Scope.PREDICT,
    "raw": Scope.PREDICT,
    "target": Scope.PREDICT,
    "options": Scope.PREDICT,
    "check": Scope.PREDICT,  # how explanations are checked: nothing without one
    "captures": Scope.INSPECT,
    "input_gradients": Scope.INSPECT,
    "attributions": Scope.INSPECT,
    "explain_if": Scope.INSPECT,
    "edits": Scope.EDIT,
    "compare": Scope.EDIT,
}
"""The scope that a field of `cutaway.v1.InspectRequest` needs. Layers that are named anywhere
but in edits need `Scope.INSPECT`."""

_WITH_LAYERS = ("target", "captures", "attributions", "edits")


class Mention(NamedTuple):
    """Where a question names a layer: the field's path, and the name or glob."""

    field: str
    layer: str


def mentions(message: Message, path: str) -> Iterator[Mention]:
    """Every layer that ``message`` names: modules, and those that own operators and parameters."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if field.name in PLACES:
            yield Mention(here, owner(value, field.name))
        elif field.name == "rules":  # of layer-wise relevance propagation, by layer
            yield from (Mention(here, layer) for layer in value)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for child in value if field.is_repeated else [value]:
                yield from mentions(child, here)


PLACES = ("module", "layer", "op", "parameter")
"""The fields of a question that name a layer, or something of one."""


@dataclass(frozen=True)
class Caller:
    """Whoever asks.

    Attributes:
        name: what the operator calls them; empty where nobody is told apart.
        grants: what they may do with each model, by its name; under ``*``, with every other model.
    """

    name: str
    grants: Mapping[str, Grant]

    def grant(self, model: str) -> Grant | None:
        """What may be done with ``model``; None where nothing may."""
        found = self.grants.get(model, self.grants.get("*"))
        return found if found and found.scopes else None

    def listed(self, catalog: Catalog) -> list[ModelName]:
        """The models that something may be done with."""
        return [name for name in catalog.all() if self.grant(name.model)]

    def may(self, scope: Scope) -> bool:
        """Whether there is any model that this may be done with."""
        return any(scope in grant.scopes for grant in self.grants.values())

    def resolve(self, wanted: str, catalog: Catalog) -> tuple[ModelName, Grant]:
        """The model that ``wanted`` names, and what may be done with it. One that this caller may do nothing with
        answers as one that does not exist.

        Raises:
            CutawayError: as `Catalog.resolve`.
        """
        grant = self.grant(parse_model(wanted)[0])
        if grant is None:
            raise _no_such_model()
        try:
            return catalog.resolve(wanted), grant
        except CutawayError as failure:
            if self is ANYONE:
                raise
            if failure.reason == Reason.MODEL_NOT_FOUND:  # its message names other models
                raise _no_such_model() from None
            if not grant.sees_all:  # why a model could not be loaded may name its layers
                failure.message = "the model, or this version of it, is not served"
            raise


def _no_such_model() -> CutawayError:
    return error(Reason.MODEL_NOT_FOUND, "no model of that name is served to this token", "model")


ANYONE = Caller("", {"*": Grant(frozenset(Scope))})
"""Every caller, where there are no tokens."""
