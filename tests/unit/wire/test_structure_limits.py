"""What no request has: names of thousands of characters, lists of hundreds of thousands."""

from __future__ import annotations

import numpy as np
import pytest

import cutaway as ca
from cutaway.errors import InvalidArgument
from cutaway.requests import InspectRequest
from cutaway.v1 import attribution_pb2, inspection_pb2
from cutaway.wire import requests
from cutaway.wire.message_walk import MAX_ENTRIES, MAX_TEXT

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


def test_a_list_that_no_limit_allows() -> None:
    """At the top and inside; a list of numbers takes no more room than in the message."""
    captures = [inspection_pb2.InspectRequest().captures.add()] * MAX_ENTRIES
    assert refused(message(captures=captures)) == ("captures", "100001 entries; 100000 are the most")
    asked = attribution_pb2.AttributionRequest(inputs=["x"] * (MAX_ENTRIES + 1))
    assert refused(message(attributions=[asked])) == ("attributions[0].inputs", "100001 entries; 100000 are the most")
    numbers = message(target={"class_index": {"indices": [0] * (MAX_ENTRIES + 1)}})
    assert requests.decode(numbers.SerializeToString()).target is not None
