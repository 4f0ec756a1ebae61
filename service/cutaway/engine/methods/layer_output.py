"""Module outputs that Captum can read: one tensor, alone or in a tuple of one."""

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

_READABLE = ("", "[0]")
"""The paths of a tensor alone, and of one in a tuple."""

_NOT_A_TENSOR = ("has no attribute 'clone'", "has no attribute 'device'", "Given input is not a torch.Tensor")
"""How Captum's message ends if it treats another object as a tensor."""


@contextmanager
def readable_output(
    problem: AttributionProblem, field: str, refuse: Callable[[Sequence[Tensor]], None] = lambda _: None
) -> Iterator[None]:
    """A context that requires a layer, or a neuron's module, whose output Captum can read.

    An error of Captum's hook on the module names the module: Captum copies each element of a tuple without a check,
    None as well.

    Args:
        problem: defines the module.
        field: the request field of the module, relative to the method's message.
        refuse: raises for outputs that the method does not support; gets those of all calls, [batch, *features] each.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: a call returns no tensor or several, integers, or not [batch, ...].
    """
    field = f"{field_name(type(problem.request))}.{field}"
    with at(field):
        refuse([_only_tensor(problem, call.at(Point.OUTPUT)) for call in module_calls(problem)])
    try:
        yield
    except CutawayError as failure:
        cause = failure.__cause__
        if not isinstance(cause, (AttributeError, AssertionError)) or not str(cause).endswith(_NOT_A_TENSOR):
            raise
        with at(field):
            raise _unreadable(problem, "something besides a tensor") from cause


def _only_tensor(problem: AttributionProblem, outputs: Mapping[Path, Tensor]) -> Tensor:
    if len(outputs) != 1 or next(iter(outputs)) not in _READABLE:
        raise _unreadable(problem, f"the tensors {', '.join(outputs)}" if outputs else "no tensor")
    (tensor,) = outputs.values()
    if not tensor.is_floating_point():
        raise _unreadable(problem, f"a tensor of {dtype_text(tensor)}")
    if tensor.shape[:1] != (problem.rows,):
        shape = f"{list(tensor.shape)}, whose axis 0 is not the batch of {problem.rows}"
        raise _unreadable(problem, f"a tensor of shape {shape}")
    return tensor


def _unreadable(problem: AttributionProblem, output: str) -> CutawayError:
    return inapplicable(
        f"the module {problem.module!r} returns {output}; the method needs one that returns one tensor of floats, "
        "[batch, ...], alone or in a tuple by itself: name such a module, before or behind it"
    )
