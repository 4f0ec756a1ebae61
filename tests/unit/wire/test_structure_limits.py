"""What no request has: names of thousands of characters, and hundreds of thousands of fields."""

from __future__ import annotations

import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import InspectRequest
from cutaway.contract.wire import requests
from cutaway.contract.wire.message_walk import MAX_ENTRIES, MAX_TEXT, read_fields
from cutaway.v1 import attribution_pb2, inspection_pb2

LONG = "n" * (MAX_TEXT + 1)
X = {"x": np.ones((1, 2), np.float32)}


def message(**fields: object) -> inspection_pb2.InspectRequest:
    """A request with an input, and ``fields``."""
    request = requests.encode(InspectRequest("net", X, captures=(ca.Capture("conv"),)))
    request.MergeFrom(inspection_pb2.InspectRequest(**fields))  # type: ignore[arg-type]
    return request


def refused(request: inspection_pb2.InspectRequest) -> tuple[str, str]:
    """The error's field and message."""
    with pytest.raises(InvalidArgument) as caught:
        requests.decode(request.SerializeToString())
    assert caught.value.reason == "INVALID_VALUE"
    return caught.value.field, caught.value.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": LONG}, "model"),
        ({"captures": [{"module": LONG}]}, "captures[1].module"),
        ({"attributions": [{"inputs": [LONG], "saliency": {}}]}, "attributions[0].inputs"),
        ({"attributions": [{"lrp": {"rules": {LONG: {}}}}]}, "attributions[0].lrp.rules"),
        ({"arguments": {LONG: {"text": "short"}}}, "arguments"),
    ],
)
def test_a_name_that_nothing_has(fields: dict[str, object], field: str) -> None:
    assert refused(message(**fields)) == (field, "a text of 1001 characters; 1000 are the most")


def test_an_arguments_text_may_be_long() -> None:
    """It is an input."""
    decoded = requests.decode(message(arguments={"prompt": {"text": LONG}}).SerializeToString())
    assert decoded.arguments == {"prompt": LONG}


TOO_MANY = "the request has more than 100000 entries"


def test_a_request_with_more_entries_than_allowed() -> None:
    """At the top, inside, and of several lists together; packed numbers count as one for each 96 bytes."""
    captures = [inspection_pb2.InspectRequest().captures.add()] * MAX_ENTRIES
    assert refused(message(captures=captures)) == ("captures", TOO_MANY)
    asked = attribution_pb2.AttributionRequest(inputs=["x"] * (MAX_ENTRIES + 1))
    assert refused(message(attributions=[asked])) == ("attributions.inputs", TOO_MANY)
    half = attribution_pb2.AttributionRequest(inputs=["x"] * (MAX_ENTRIES // 2))
    assert refused(message(attributions=[half, half])) == ("attributions.inputs", TOO_MANY)
    numbers = message(target={"class_index": {"indices": [300] * (MAX_ENTRIES + 1)}})
    assert requests.decode(numbers.SerializeToString()).target is not None
    numbers = message(target={"class_index": {"indices": [1] * (97 * MAX_ENTRIES)}})
    assert refused(numbers) == ("target.class_index.indices", TOO_MANY)


def test_a_number_without_an_end() -> None:
    """A number has ten bytes at most: reading a longer one would take a time that grows with its square."""
    with pytest.raises(IndexError):
        list(read_fields(b"\x08" + b"\xff" * 10 + b"\x01"))
    assert list(read_fields(b"\x08" + b"\xff" * 9 + b"\x01")) == [(1, 2**64 - 1)]


def test_what_protobuf_reads_is_read() -> None:
    """Inputs in parts, between other fields and behind them, are one input; what stands beside them is not lost."""
    parts = [requests.encode(InspectRequest("net", {f"x{number}": X["x"]}, seed=7)) for number in range(3)]
    first, *others = (part.SerializeToString() for part in parts)
    found = requests.decode(first + b"".join(others))
    assert (found.model, found.seed, sorted(found.tensors)) == ("net", 7, ["x0", "x1", "x2"])
    with pytest.raises(InvalidArgument, match="no field number 1000"):
        requests.decode(first + b"\xc3\x3e\xc4\x3e" + others[0])  # a group of number 1000, begun and ended
