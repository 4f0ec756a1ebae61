"""Where attributions start from: a number or a tensor for each input."""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.errors import Reason, at, error
from cutaway.tensors import Array, ArrayLike, as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays


def encode(given: Mapping[str, float | ArrayLike], message: pb.Baselines) -> None:
    """Put ``given`` into ``message``."""
    with at("baselines.by_input"):
        for name, each in given.items():
            with at(name):
                message.by_input[name].CopyFrom(_encode_one(each))


def _encode_one(given: float | ArrayLike) -> pb.Baseline:
    if isinstance(given, (int, float)):
        return pb.Baseline(scalar=given)
    return pb.Baseline(tensor=arrays.encode(as_array(given)))


def decode(message: pb.Baselines) -> dict[str, float | Array]:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    found: dict[str, float | Array] = {}
    for name, each in message.by_input.items():
        with at(f"baselines.by_input.{name}"):
            found[name] = _decode_one(each)
    return found


def _decode_one(given: pb.Baseline) -> float | Array:
    if given.WhichOneof("kind") is None:
        raise error(Reason.INVALID_VALUE, "a baseline needs a scalar or a tensor")
    if given.HasField("tensor"):
        with at("tensor"):
            return arrays.decode(given.tensor)
    return given.scalar
