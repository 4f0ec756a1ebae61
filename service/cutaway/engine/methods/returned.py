"""What Captum can read of what a module returns: one tensor, alone or in a tuple with nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from cutaway.engine.leaves import Path
from cutaway.errors import CutawayError, Reason, at, error

_READABLE = ("", "[0]")
"""The paths of a bare tensor, and of one in a tuple."""

_STUMBLES = ("has no attribute 'clone'", "has no attribute 'device'", "Given input is not a torch.Tensor")
"""How the message ends where Captum takes for a tensor what is none."""


def only_tensor(module: str, returned: Mapping[Path, Tensor], rows: int) -> Tensor:
    """The tensor that ``module`` returned, [batch, ...].

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, where there is none, or another beside it, or it is no tensor of
            floats whose axis 0 is the batch.
    """
    if len(returned) != 1 or next(iter(returned)) not in _READABLE:
        raise _unreadable(module, f"the tensors {', '.join(returned)}" if returned else "no tensor")
    (tensor,) = returned.values()
    if not tensor.is_floating_point():
        raise _unreadable(module, f"a tensor of {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.shape[:1] != (rows,):
        raise _unreadable(module, f"a tensor of shape {list(tensor.shape)}, whose axis 0 is not the batch of {rows}")
    return tensor


def _unreadable(module: str, returned: str) -> CutawayError:
    return error(
        Reason.METHOD_INAPPLICABLE,
        f"the module {module!r} returns {returned}; the method needs one that returns one tensor of floats, [batch, "
        "...], alone or in a tuple by itself: name such a module, before or behind it",
    )


@contextmanager
def read_by_captum(module: str, field: str) -> Iterator[None]:
    """What Captum's hook on ``module`` stumbles over is said of the module, not of the model: Captum copies what is in
    a tuple without a look, also None."""
    try:
        yield
    except CutawayError as failure:
        cause = failure.__cause__
        if not isinstance(cause, (AttributeError, AssertionError)) or not str(cause).endswith(_STUMBLES):
            raise
        with at(field):
            raise _unreadable(module, "something besides a tensor") from cause
