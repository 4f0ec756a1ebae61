"""Resolves the names, globs and operator addresses of captures and edits."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeAlias

from torch import nn

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.module_globs import glob_matcher, is_glob
from cutaway.contract.requests import Capture, Edit, InspectRequest, Point, TopElements
from cutaway.engine.hooks.capture_spec import CaptureSpec, merge_specs
from cutaway.engine.hooks.edits import validate_edit
from cutaway.engine.hooks.hook_site import NumberedEdit
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.model.module_tree import ModuleTree

CaptureSites: TypeAlias = dict[str, dict[Point, CaptureSpec]]
"""What is captured at the points of modules and operators, by module name and by operator address or glob."""


def sites(tree: ModuleTree, request: InspectRequest) -> CaptureSites:
    """Returns what is captured, in the order of the request.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``, ``OP_NOT_FOUND``, or ``INVALID_VALUE``: one place is captured twice.
    """
    sites: CaptureSites = {}
    for index, capture in enumerate(request.captures):
        if not capture.parameter:
            spec = _spec(request, capture, f"captures[{index}]")
            with at(spec.field), at("op" if capture.op else "module"):
                places = [_operator(tree, capture.op)] if capture.op else tree.match(capture.module)
            for name in places:
                merge_specs(name, sites.setdefault(name, {}), dict.fromkeys(capture.points, spec))
    return sites


def _spec(request: InspectRequest, capture: Capture, field: str) -> CaptureSpec:
    return CaptureSpec(
        call=capture.call,
        path=capture.path,
        slices=tuple(capture.slices),
        reduce=capture.reduce,
        data_type=capture.data_type or request.reply_data_type,
        field=field,
        type_field=f"{field}.data_type" if capture.data_type else "options.reply_data_type",
        exact=bool(capture.parameter) or not is_glob(capture.op or capture.module),
        batched=not capture.parameter,
    )


def _operator(tree: ModuleTree, address: str) -> str:
    """Returns ``address`` with the module's own name; a glob unchanged.

    Raises:
        InvalidArgument: ``OP_NOT_FOUND`` for text that is no address; ``MODULE_NOT_FOUND``.
    """
    if not is_address(address):
        raise error(
            Reason.OP_NOT_FOUND,
            f"{address!r} is no operator's address; one is a module's name, a colon, the operator's name, and which of "
            "that name it is: layer3.1:relu#0",
        )
    module, _, rest = address.rpartition(":")
    return address if is_glob(address) or not module else f"{tree.resolve(module)}:{rest}"


def parameters(tree: ModuleTree, request: InspectRequest) -> dict[str, CaptureSpec]:
    """Returns the parameters whose gradients are captured, by name.

    Raises:
        InvalidArgument: ``PARAMETER_NOT_FOUND``, with the nearest names; ``POINT_NOT_DIFFERENTIABLE``.
    """
    captures = [(f"captures[{index}]", each) for index, each in enumerate(request.captures) if each.parameter]
    by_name = tree.parameters() if captures else {}
    specs: dict[str, CaptureSpec] = {}
    for field, capture in captures:
        if isinstance(capture.reduce, TopElements):
            text = "a parameter's gradient has no place for positions: take it whole"
            raise error(Reason.INVALID_VALUE, text, f"{field}.reduction")
        spec = _spec(request, capture, field)
        with at(f"{field}.parameter"):
            names = _parameter_names(by_name, capture.parameter)
        if any(specs.get(name, spec) != spec for name in names):
            raise error(Reason.INVALID_VALUE, f"a parameter of {capture.parameter!r} is captured in another way", field)
        specs.update(dict.fromkeys(names, spec))
    return specs


def _parameter_names(parameters: Mapping[str, nn.Parameter], pattern: str) -> list[str]:
    """Returns the floating parameters that match ``pattern``, a name or a glob."""
    matches = glob_matcher(pattern) if is_glob(pattern) else pattern.__eq__
    names = [name for name in parameters if matches(name)]
    if not names:
        near = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.4) or list(parameters)[:3]
        hint = f"nearest: {', '.join(near)}" if near else "there is none"
        raise error(Reason.PARAMETER_NOT_FOUND, f"no parameter is named {pattern!r}; {hint}")
    floating = [name for name in names if parameters[name].is_floating_point()]
    if not floating and not is_glob(pattern):
        raise error(Reason.POINT_NOT_DIFFERENTIABLE, f"{pattern!r} is {parameters[pattern].dtype} and has no gradient")
    return floating


def edits(tree: ModuleTree, request: InspectRequest, batch: int) -> dict[str, list[NumberedEdit]]:
    """Returns what is changed, by module name and by operator address; ``batch`` is the number of rows.

    Raises:
        InvalidArgument: the module or operator does not exist, or rows or a permutation do not fit the batch.
    """
    edits: dict[str, list[NumberedEdit]] = {}
    for number, edit in enumerate(request.edits):
        with at(f"edits[{number}]"):
            validate_edit(edit, batch)
            edits.setdefault(_edited_place(tree, edit), []).append((number, edit))
    return edits


def _edited_place(tree: ModuleTree, edit: Edit) -> str:
    field, name = ("op", edit.op) if edit.op else ("module", edit.module)
    with at(field):
        if is_glob(name):
            raise error(Reason.INVALID_VALUE, f"{name!r}: an edit names one place, and no glob")
        return _operator(tree, name) if edit.op else tree.place(name)
