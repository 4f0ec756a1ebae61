"""Module outputs that Captum can read: one tensor, alone or in a tuple of one, or several in a tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor

from cutaway.engine.methods.validation import inapplicable
from cutaway.engine.model.inspected_model import dtype_text
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.references.observation import module_calls
from cutaway.engine.runtime.pytree import Path
from cutaway.errors import CutawayError, at
from cutaway.requests import Point, field_name

_NOT_A_TENSOR = ("has no attribute 'clone'", "has no attribute 'device'", "Given input is not a torch.Tensor")
"""How Captum's message ends if it treats another object as a tensor."""


@contextmanager
def readable_output(
    problem: AttributionProblem,
    field: str,
    refuse: Callable[[Sequence[Sequence[Tensor]]], None] = lambda _: None,
    *,
    several: bool = False,
) -> Iterator[None]:
    """A context that requires a layer, or a neuron's module, whose output Captum can read.

    An error of Captum's hook on the module names the module: Captum copies each element of a tuple without a check,
    None as well.

    Args:
        problem: defines the module.
        field: the request field of the module, relative to the method's message.
        refuse: raises for outputs that the method does not support; gets the tensors of each call, [batch, *features].
        several: whether a call may return several tensors in a tuple.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: a call returns no tensor or too many, integers, or not [batch, ...].
    """
    field = f"{field_name(type(problem.request))}.{field}"
    with at(field):
        refuse([_tensors(problem, call.at(Point.OUTPUT), several) for call in module_calls(problem)])
    try:
        yield
    except CutawayError as failure:
        cause = failure.__cause__
        if not isinstance(cause, (AttributeError, AssertionError)) or not str(cause).endswith(_NOT_A_TENSOR):
            raise
        with at(field):
            raise _unreadable(problem, "something besides a tensor", several) from cause


def _tensors(problem: AttributionProblem, outputs: Mapping[Path, Tensor], several: bool) -> Sequence[Tensor]:
    is_tuple = list(outputs) == [f"[{number}]" for number in range(len(outputs))]
    if not outputs or not (is_tuple or "" in outputs) or (len(outputs) > 1 and not several):
        what = f"the tensors {', '.join(outputs)}" if outputs else "no tensor"
        raise _unreadable(problem, what, several)
    for tensor in outputs.values():
        if not tensor.is_floating_point():
            raise _unreadable(problem, f"a tensor of {dtype_text(tensor)}", several)
        if tensor.shape[:1] != (problem.rows,):
            shape = f"{list(tensor.shape)}, whose axis 0 is not the batch of {problem.rows}"
            raise _unreadable(problem, f"a tensor of shape {shape}", several)
    return list(outputs.values())


def _unreadable(problem: AttributionProblem, output: str, several: bool) -> CutawayError:
    tensors = "tensors of floats, [batch, ...], one alone or a tuple of them" if several else (
        "one tensor of floats, [batch, ...], alone or in a tuple by itself"
    )  # fmt: skip
    return inapplicable(
        f"the module {problem.module!r} returns {output}; the method needs one that returns {tensors}: name such a "
        "module, before or behind it"
    )
