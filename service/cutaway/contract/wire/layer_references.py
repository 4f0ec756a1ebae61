"""Finds every place in a request that names a layer, or an operator or parameter of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import Message

from cutaway.contract.wire.message_walk import children

LAYER_FIELDS = ("module", "layer", "further_layers", "op", "parameter", "rules")
"""The fields that do: texts, lists of texts, or a map by text."""


class LayerReference(NamedTuple):
    """One name in a request.

    Attributes:
        field: path of the field.
        kind: the field's own name: one of `LAYER_FIELDS`.
        name: the name or glob.
    """

    field: str
    kind: str
    name: str


def layer_references(message: Message, path: str = "") -> Iterator[LayerReference]:
    """Yields every name of a layer in ``message``, whose own path is ``path``."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        if field.name in LAYER_FIELDS:
            yield from (
                LayerReference(here, field.name, name) for name in ([value] if isinstance(value, str) else value)
            )
        else:
            for where, child in children(field, value, here):
                yield from layer_references(child, where)
