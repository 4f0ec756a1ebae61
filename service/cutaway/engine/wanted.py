"""Where captures and edits sit: names, globs and addresses resolved."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from cutaway.engine.edits import validate
from cutaway.engine.globs import compiled, is_glob
from cutaway.engine.modules import ModuleTree
from cutaway.engine.operators import is_address
from cutaway.engine.tap import Numbered
from cutaway.engine.wishes import Wish
from cutaway.errors import Reason, at, error
from cutaway.requests import Capture, Edit, InspectRequest, Point, TopElements


def taps(tree: ModuleTree, request: InspectRequest) -> dict[str, dict[Point, Wish]]:
    """What is wanted, by module name and by operator address or glob, in the order of the request.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``, ``OP_NOT_FOUND``, or ``INVALID_VALUE`` for one place wanted in two ways.
    """
    found: dict[str, dict[Point, Wish]] = {}
    for index, capture in enumerate(request.captures):
        if capture.parameter:
            continue
        with at(f"captures[{index}]"):
            exact = not is_glob(capture.op or capture.module)
            wish = _wish(request, capture, f"captures[{index}]", exact)
            for name in _places(tree, capture):
                _add(found.setdefault(name, {}), name, capture.points, wish)
    return found


def _wish(request: InspectRequest, capture: Capture, field: str, exact: bool) -> Wish:
    return Wish(
        call=capture.call,
        path=capture.path,
        slices=tuple(capture.slices),
        reduce=capture.reduce,
        data_type=capture.data_type or request.reply_data_type,
        field=field,
        type_field=f"{field}.data_type" if capture.data_type else "options.reply_data_type",
        exact=exact,
    )


def _places(tree: ModuleTree, capture: Capture) -> list[str]:
    if capture.op:
        with at("op"):
            return [operator(tree, capture.op)]
    with at("module"):
        return tree.match(capture.module)


def operator(tree: ModuleTree, address: str) -> str:
    """``address`` with the module's own name; a glob as it is.

    Raises:
        InvalidArgument: ``OP_NOT_FOUND`` where it is no address, ``MODULE_NOT_FOUND``.
    """
    if not is_address(address):
        raise error(
            Reason.OP_NOT_FOUND,
            f"{address!r} is no operator's address; one is a module's name, a colon, the operator's name, and which of "
            "that name it is: layer3.1:relu#0",
        )
    if is_glob(address):
        return address
    module, _, rest = address.rpartition(":")
    return f"{tree.resolve(module) if module else module}:{rest}"


def _add(there: dict[Point, Wish], name: str, points: tuple[Point, ...], wish: Wish) -> None:
    for point in points:
        known = there.get(point, wish)
        if known != wish or any(other.call != wish.call for other in there.values()):
            raise error(
                Reason.INVALID_VALUE,
                f"{name!r} is captured twice, and in different ways: other slices, reductions or calls need a request "
                "of their own",
            )
        there[point] = replace(known, exact=True) if wish.exact and not known.exact else known


def parameters(module: nn.Module, request: InspectRequest) -> dict[str, Wish]:
    """The parameters whose gradients are wanted, by name.

    Raises:
        InvalidArgument: ``PARAMETER_NOT_FOUND``, with the nearest names; ``POINT_NOT_DIFFERENTIABLE``.
    """
    if not any(capture.parameter for capture in request.captures):
        return {}
    known = dict(module.named_parameters(remove_duplicate=False))
    found: dict[str, Wish] = {}
    for index, capture in enumerate(request.captures):
        if capture.parameter:
            field = f"captures[{index}]"
            if isinstance(capture.reduce, TopElements):
                raise error(
                    Reason.INVALID_VALUE,
                    "a parameter's gradient has no place for positions: take it whole",
                    f"{field}.reduction",
                )
            wish = replace(_wish(request, capture, field, True), batched=False)
            with at(f"{field}.parameter"):
                hits = list(_parameters(known, capture.parameter))
            if any(found.get(name, wish) != wish for name in hits):
                raise error(
                    Reason.INVALID_VALUE, f"a parameter of {capture.parameter!r} is captured in another way", field
                )
            found.update(dict.fromkeys(hits, wish))
    return found


def _parameters(known: Mapping[str, nn.Parameter], pattern: str) -> Iterator[str]:
    regex = compiled(pattern)
    hits = [name for name in known if (regex.fullmatch(name) if is_glob(pattern) else name == pattern)]
    if not hits:
        near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or list(known)[:3]
        raise error(
            Reason.PARAMETER_NOT_FOUND,
            f"no parameter is named {pattern!r}; " + (f"nearest: {', '.join(near)}" if near else "there is none"),
        )
    whole = [name for name in hits if not known[name].is_floating_point()]
    if whole and not is_glob(pattern):
        raise error(Reason.POINT_NOT_DIFFERENTIABLE, f"{pattern!r} is {known[pattern].dtype} and has no gradient")
    yield from (name for name in hits if name not in whole)


def edits(tree: ModuleTree, request: InspectRequest, batch: int) -> dict[str, list[Numbered]]:
    """What is changed, by module name and by operator address.

    Raises:
        InvalidArgument: the place does not exist, or rows or a permutation do not fit the batch.
    """
    found: dict[str, list[Numbered]] = {}
    for number, edit in enumerate(request.edits):
        with at(f"edits[{number}]"):
            validate(edit, batch)
            found.setdefault(_place(tree, edit), []).append((number, edit))
    return found


def _place(tree: ModuleTree, edit: Edit) -> str:
    field, name = ("op", edit.op) if edit.op else ("module", edit.module)
    with at(field):
        if is_glob(name):
            raise error(Reason.INVALID_VALUE, f"{name!r}: an edit names one place, and no glob")
        return operator(tree, name) if edit.op else tree.resolve(name)
