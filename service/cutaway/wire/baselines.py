"""Where attributions start from: a number, a tensor or a token's id for each input; or samples of a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import TokenId
from cutaway.tensors import as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays
from cutaway.wire.numbers import INT64, whole


def encode(given: Mapping[str, Any], message: pb.Baselines, distributions: bool) -> None:
    """Put ``given`` into ``message``. ``distributions``: its tensors are samples of distributions."""
    with at("baselines.by_input"):
        for name, each in given.items():
            with at(name):
                message.by_input[name].CopyFrom(_encode_one(each, distributions))


def _encode_one(given: Any, distributions: bool) -> pb.Baseline:
    if distributions:
        return pb.Baseline(distribution=arrays.encode(as_array(given)))
    if isinstance(given, TokenId):
        return pb.Baseline(token_id=whole("token_id", given, INT64))
    if isinstance(given, (int, float)):
        return pb.Baseline(scalar=given)
    return pb.Baseline(tensor=arrays.encode(as_array(given)))


def decode(message: pb.Baselines, distributions: bool) -> dict[str, Any]:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    found: dict[str, Any] = {}
    for name, each in message.by_input.items():
        with at(f"baselines.by_input.{name}"):
            found[name] = _decode_one(each, distributions)
    return found


def _decode_one(given: pb.Baseline, distributions: bool) -> Any:
    kind = given.WhichOneof("kind")
    if kind is None or (kind == "distribution") is not distributions:
        wanted = "a distribution" if distributions else "a scalar, a tensor or a token id"
        raise error(Reason.INVALID_VALUE, f"{kind or 'nothing'}; this method takes {wanted}", kind or "")
    if kind == "token_id":
        return TokenId(given.token_id)
    if kind == "scalar":
        return given.scalar
    with at(str(kind)):
        return arrays.decode(getattr(given, str(kind)))
