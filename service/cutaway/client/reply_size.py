"""Expected sizes of replies: large replies are requested as a stream.

A reply is expected to be as large as the last one to a similar request. Before the first one, the client requests an
estimate from the server, unless the request is so small that even a reply of many times its size would not be large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from cutaway.errors import CutawayError, Reason
from cutaway.requests import InspectRequest

LARGE_BYTES = 1 << 20
"""Above this size a streamed reply is faster than one message."""

_SMALL_REQUEST_BYTES = LARGE_BYTES // 16
"""Up to this size of the request an estimate costs more than it saves: a reply that is large nevertheless comes in one
message, or is requested again as a stream."""

_MAX_REMEMBERED = 1024


class ReplySizes:
    """Reply bytes per example of the requests of one client, by the kind of request. Threads may share it."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[Hashable, float] = OrderedDict()

    def is_large(self, request: InspectRequest) -> bool:
        """Whether the reply to ``request`` should be streamed."""
        return self._bytes.get(_signature(request), 0.0) * _examples(request) > LARGE_BYTES

    def needs_estimate(self, request: InspectRequest) -> bool:
        """Whether the client should request an estimate first."""
        sent = sum(array.nbytes for array in request.tensors.values()) + sum(len(raw.data) for raw in request.raw)
        return sent > _SMALL_REQUEST_BYTES and _signature(request) not in self._bytes

    def note(self, request: InspectRequest, reply_bytes: int) -> None:
        """Remembers the size of the reply to ``request``, or its estimate."""
        self._bytes[_signature(request)] = reply_bytes / _examples(request)
        while len(self._bytes) > _MAX_REMEMBERED:
            self._bytes.popitem(last=False)


def exceeds_one_message(failure: CutawayError) -> bool:
    """Whether a reply was refused because it is too large for one message, and not for the caller's own limit."""
    return failure.reason == Reason.REPLY_TOO_LARGE and not failure.field


def _signature(request: InspectRequest) -> Hashable:
    return (
        request.model,
        tuple((name, array.dtype.str, array.shape[1:]) for name, array in request.tensors.items()),
        tuple(sorted({raw.media_type for raw in request.raw})),
        repr((request.captures, request.input_gradients, request.target.__class__)),
        tuple((type(attribution), getattr(attribution, "layer", "")) for attribution in request.attributions),
        (request.compare, request.omit_predictions),
    )


def _examples(request: InspectRequest) -> int:
    """Returns the number of rows, which is axis 0 of most tensors of a reply."""
    rows = max((array.shape[0] for array in request.tensors.values() if array.ndim), default=len(request.raw))
    return max(rows, 1)
