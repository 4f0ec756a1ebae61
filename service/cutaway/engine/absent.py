"""What was asked for and is not there: an error where it can never be, a warning where this input is the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from cutaway.engine.asking import embedding_hint
from cutaway.engine.collect import named
from cutaway.engine.edits import same
from cutaway.engine.globs import compiled, is_glob
from cutaway.engine.modules import ModuleTree
from cutaway.engine.operators import is_address, nearest
from cutaway.engine.plan import Plan
from cutaway.engine.seen import Call, Seen
from cutaway.engine.subject import Outputs
from cutaway.engine.wishes import Wish
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import POINTS, Point
from cutaway.results import Warning, WarningCode


def settled(todo: Plan, seen: Seen) -> dict[str, dict[Point, Wish]]:
    """What was wanted, with globs of operators replaced by the addresses that ran.

    Raises:
        InvalidArgument: ``OP_NOT_FOUND``, where none did.
    """
    found: dict[str, dict[Point, Wish]] = {}
    for name, wishes in todo.taps.items():
        for own in _matching(name, seen, f"{_field(wishes)}.op") if is_address(name) and is_glob(name) else [name]:
            found[own] = {**found.get(own, {}), **wishes}
        if is_address(name) and not (is_glob(name) or seen.calls[name]):
            raise _no_operator(name, seen, f"{_field(wishes)}.op")
    return found


def _matching(glob: str, seen: Seen, field: str) -> list[str]:
    hits = [address for address in seen.operators if compiled(glob).fullmatch(address)]
    if not hits:
        raise _no_operator(glob, seen, field)
    return hits


def _no_operator(address: str, seen: Seen, field: str) -> CutawayError:
    return error(Reason.OP_NOT_FOUND, f"no operator {address!r} ran{nearest(address, list(seen.operators))}", field)


def _field(wishes: Mapping[Point, Wish]) -> str:
    return next(iter(wishes.values())).field


def refuse_captures(wanted: Mapping[str, dict[Point, Wish]], seen: Seen, tree: ModuleTree) -> None:
    """Refuse what was named, and is not there whatever the input.

    Raises:
        InvalidArgument: ``CALL_NOT_FOUND``, ``POINT_NOT_FOUND``, ``PATH_NOT_FOUND`` or ``POINT_NOT_DIFFERENTIABLE``.
    """
    for name, wishes in wanted.items():
        calls = named(seen.calls[name], wishes)
        for point, wish in wishes.items():
            if wish.exact and not any(call.parts(point) for call in calls):
                with at(wish.field):
                    _refuse_call(name, wish.call, seen.calls[name])
                    _refuse_point(name, point, wish.path, calls, tree, "points")


def refuse_edits(todo: Plan, seen: Seen, tree: ModuleTree) -> None:
    """The same for edits; where forward stopped early nobody knows what would have been there."""
    if seen.stopped:
        return
    for name, edits in todo.edits.items():
        for number, edit in edits:
            with at(f"edits[{number}]"):
                if is_address(name) and not seen.calls[name]:
                    raise _no_operator(name, seen, "op")
                _refuse_call(name, edit.call, seen.calls[name])
                calls = [call for call in seen.calls[name] if edit.call in (None, call.number)]
                _refuse_point(name, edit.point, edit.path, calls, tree, "point")


def _refuse_call(name: str, number: int | None, calls: Sequence[Call]) -> None:
    if number is not None and number >= len(calls):
        times = "never" if not calls else "once" if len(calls) == 1 else f"{len(calls)} times"
        raise error(Reason.CALL_NOT_FOUND, f"there is no call {number} of {name!r}: it was called {times}", "call")


def _refuse_point(name: str, point: Point, path: str, calls: Sequence[Call], tree: ModuleTree, field: str) -> None:
    if not calls:
        return
    value = {Point.GRAD_INPUT: Point.INPUT, Point.GRAD_OUTPUT: Point.OUTPUT}.get(point, point)
    kinds = [kinds for call in calls for kinds in call.kinds.get(value, {}).items()]
    if not kinds:
        verb = "takes" if value is Point.INPUT else "returns"
        raise error(Reason.POINT_NOT_FOUND, f"{name!r} {verb} no tensor: it has no {point.value}", field)
    there = [kind for each, kind in kinds if path in ("", each)]
    if not there:
        known = ", ".join(repr(each) for each, _ in dict(kinds).items())
        raise error(
            Reason.PATH_NOT_FOUND, f"no tensor at {path!r} of the {value.value} of {name!r}; there is {known}", "path"
        )
    if point.is_gradient and not any(kind.is_floating_point or kind.is_complex for kind in there):
        raise error(
            Reason.POINT_NOT_DIFFERENTIABLE,
            f"the {value.value} of {name!r} is {str(there[0]).removeprefix('torch.')} and has no gradient"
            + embedding_hint(tree),
            field,
        )


def capture_warnings(wanted: Mapping[str, dict[Point, Wish]], seen: Seen, tree: ModuleTree) -> Iterator[Warning]:
    """What this input did not show."""
    for name, wishes in wanted.items():
        if not seen.calls[name]:
            yield Warning(WarningCode.MODULE_NOT_CALLED, name, _why_not_called(name, tree))
            continue
        calls = named(seen.calls[name], wishes)
        for point in POINTS:
            silent = [call.number for call in calls if not call.parts(point)] if point in wishes else []
            if silent:
                yield _silence(name, point, silent)


def _why_not_called(name: str, tree: ModuleTree) -> str:
    module, parent = tree.modules[name], tree.modules.get(name.rpartition(".")[0])
    nothing = f"the model never called {name!r}: there is nothing to capture; "
    if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)):
        return f"{nothing}it is a container, whose members are called one by one: {name}.*"
    if isinstance(parent, nn.MultiheadAttention):
        above = name.rpartition(".")[0]
        return (
            f"{nothing}its parent, an nn.MultiheadAttention, uses its weights without calling it: capture {above!r}, "
            f"or the operator '{above}:multi_head_attention_forward#0'"
        )
    return f"{nothing}forward did not reach it for this input, or uses its weights without calling it"


def _silence(name: str, point: Point, silent: Sequence[int | None]) -> Warning:
    which = f"call {', '.join(map(str, silent))} of {name!r}"
    if point.is_gradient:
        return Warning(
            WarningCode.NO_GRADIENT,
            name,
            f"the target's gradient does not reach the {point.value} of {which}",
        )
    return Warning(WarningCode.NOT_A_TENSOR, name, f"there is no tensor at the {point.value} of {which}")


def edit_warnings(todo: Plan, seen: Seen, effects: Mapping[int, bool]) -> Iterator[Warning]:
    """Edits that changed nothing: a no-op must not pass for an experiment."""
    for name, edits in todo.edits.items():
        for number, edit in edits:
            if effects.get(number):
                continue
            if number in effects:
                why = f"the {edit.point.value} of {name!r} already was what the edit makes of it"
            elif not seen.calls[name] and seen.stopped:
                why = f"forward stopped before {name!r}, behind the last capture"
            elif not seen.calls[name]:
                why = f"the model never called {name!r} for this input"
            elif edit.point.is_gradient and not todo.differentiates:
                why = "no gradient was asked for"
            else:
                why = f"no gradient reached the {edit.point.value} of {name!r}"
            yield Warning(WarningCode.EDIT_WITHOUT_EFFECT, f"edits[{number}]", f"the edit changed nothing: {why}")


def gradient_warnings(todo: Plan, inputs: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Iterator[Warning]:
    """Gradients that were asked for and that the target does not have."""
    for name in todo.gradients_of:
        if name not in inputs:
            yield Warning(WarningCode.NO_GRADIENT, name, f"the target does not depend on the input {name!r}")
    for name in todo.parameters:
        if name not in parameters:
            yield Warning(WarningCode.NO_GRADIENT, name, f"the target does not depend on the parameter {name!r}")


def comparison_warnings(todo: Plan, unedited: Outputs, edited: Outputs) -> Iterator[Warning]:
    """Edits of values that left every prediction as it was: the model may not use what was edited."""
    values = [edit for edits in todo.edits.values() for _, edit in edits if not edit.point.is_gradient]
    if values and unedited and all(same(unedited[name], edited[name]) for name in unedited):
        yield Warning(
            WarningCode.EDIT_WITHOUT_EFFECT, "edits", "the edited and the unedited prediction are the same to the bit"
        )
