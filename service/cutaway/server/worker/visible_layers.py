"""Decides whether a call may name what it names: the caller's lists of layers against the model's own names.

A layer that the caller may not see and one that does not exist are the same: both get the same error.
"""

from __future__ import annotations

from functools import partial

from cutaway.contract.errors import Reason, error
from cutaway.contract.module_globs import GlobLists, in_every_list
from cutaway.contract.wire.layer_references import layer_references
from cutaway.contract.wire.message_walk import parse
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.module_tree import ModuleTree
from cutaway.engine.planning.name_resolution import has_place
from cutaway.v1 import inspection_pb2


def visible_tree(model: InspectedModel, layers: GlobLists, request: bytes) -> ModuleTree:
    """Returns the modules that exist for the caller of a serialised `cutaway.v1.InspectRequest`, which names no others.

    Raises:
        PermissionDenied: ``LAYER_HIDDEN``, with the field.
    """
    if not layers:
        return model.tree
    make = partial(ModuleTree, model.module, partial(in_every_list, layers))
    tree = model.remembered((visible_tree, layers), make)
    for field, kind, name in layer_references(parse(inspection_pb2.InspectRequest, request)):
        if not has_place(tree, kind, name):
            raise error(Reason.LAYER_HIDDEN, "this token may see and edit no layer of that name", field)
    return tree
