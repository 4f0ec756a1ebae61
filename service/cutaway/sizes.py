"""How large replies will be: large ones come in pieces.

A reply is as large as the last one to such a question. Of the first nobody knows: the server is asked for an estimate,
unless so little is sent that not even a reply of many times its size would be large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from cutaway.errors import CutawayError, Reason
from cutaway.requests import InspectRequest

LARGE_BYTES = 1 << 20
"""From here on a reply in pieces is the quicker one."""

_LITTLE_BYTES = LARGE_BYTES // 16
"""Up to here an estimate is not worth its way: should the reply be large nevertheless, it comes in one message, or is
asked for again in pieces."""

_REMEMBERED = 1024


class Sizes:
    """What one client has seen: bytes an example, by what was asked. Threads may share it."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def large(self, request: InspectRequest) -> bool:
        """Whether the reply to ``request`` should come in pieces."""
        return self._seen.get(_signature(request), 0.0) * _examples(request) > LARGE_BYTES

    def unsure(self, request: InspectRequest) -> bool:
        """Whether an estimate is worth asking for."""
        sent = sum(array.nbytes for array in request.tensors.values()) + sum(len(raw.data) for raw in request.raw)
        return sent > _LITTLE_BYTES and _signature(request) not in self._seen

    def note(self, request: InspectRequest, reply_bytes: int) -> None:
        """Remember the reply to ``request``, or what it is estimated at."""
        self._seen[_signature(request)] = reply_bytes / _examples(request)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)


def too_large_for_one(failure: CutawayError) -> bool:
    """Whether a reply was refused because one message of the server's cannot carry it, and not by the caller's word."""
    return failure.reason == Reason.REPLY_TOO_LARGE and not failure.field


def _signature(request: InspectRequest) -> Hashable:
    return (
        request.model,
        tuple((name, array.dtype.str, array.shape[1:]) for name, array in request.tensors.items()),
        tuple(sorted({raw.media_type for raw in request.raw})),
        repr((request.captures, request.input_gradients, request.target.__class__)),
        tuple((type(each), getattr(each, "layer", "")) for each in request.attributions),
        (request.compare, request.omit_predictions),
    )


def _examples(request: InspectRequest) -> int:
    """How many rows there are: of most of a reply's tensors they are the first axis."""
    rows = max((array.shape[0] for array in request.tensors.values() if array.ndim), default=len(request.raw))
    return max(rows, 1)
