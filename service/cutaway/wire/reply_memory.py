"""The most memory that a client gives to one reply, whatever a server says."""

from __future__ import annotations

from cutaway.errors import Reason, error
from cutaway.schema.tensors import bytes_of
from cutaway.v1 import inspection_pb2
from cutaway.wire.arrays import data_type_of
from cutaway.wire.chunks import reply_tensors

MAX_REPLY_BYTES = 4 << 30
"""Bytes of the tensors of one reply, unpacked, unless the caller allows more."""


def check_reply_memory(response: inspection_pb2.InspectResponse, allowed_bytes: int = 0) -> None:
    """Checks the size that the tensors of a reply have by their shapes, before memory is allocated for them.

    Args:
        response: the reply, with or without the bytes of its tensors.
        allowed_bytes: what the caller allows; counts if it is more than `MAX_REPLY_BYTES`.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
        InvalidArgument: ``INPUT_DTYPE`` or ``INPUT_SHAPE``: a tensor cannot exist.
    """
    limit = max(allowed_bytes, MAX_REPLY_BYTES)
    size = sum(bytes_of(data_type_of(tensor), tensor.shape) for tensor in reply_tensors(response))
    if size > limit:
        what = f"the reply has tensors of {size} bytes, of which this client accepts {limit}"
        raise error(Reason.REPLY_TOO_LARGE, what, "max_reply_bytes")
