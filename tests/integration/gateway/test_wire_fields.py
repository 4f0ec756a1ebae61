"""The bytes of replies: every decoder must read the same in them, also one that does not merge repeated fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.grpc_status import DETAILS_KEY
from cutaway.gateway import serve
from cutaway.v1 import inspection_pb2, inspection_service_pb2
from tests.support.small_models import Images
from tests.support.wire_walk import ambiguities

IMAGE = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
EVERYTHING: dict[str, Any] = {
    "captures": [ca.Capture("conv*", at=tuple(ca.Point)), ca.Capture("unused"), ca.Capture(parameter="fc.weight")],
    "input_gradients": True,
    "attributions": [ca.IntegratedGradients(n_steps=8), ca.LayerGradCam(layer="conv2")],
    "explain_if": ca.ExplainIf(probability_at_most=1.0),
    "edits": [ca.Scale("conv1", factor=0.5)],
    "compare": True,
    "seed": 1,
}
REQUEST = wire_requests.encode(build_request("net", {"image": IMAGE}, **EVERYTHING))


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with serve({"net": Images()}) as server, grpc.insecure_channel(server.address) as channel:
        yield channel


def assert_all_timed(response: inspection_pb2.InspectResponse) -> None:
    for field in inspection_pb2.Timings.DESCRIPTOR.fields:
        assert getattr(response.timings, field.name) > 0, field.name


def test_a_reply_in_one_message(channel: grpc.Channel) -> None:
    """No singular field occurs twice in it, at any depth, and none that the contract does not have; and every stage has
    its time."""
    inspect: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
    data = inspect(REQUEST.SerializeToString())
    response = inspection_pb2.InspectResponse
    assert list(ambiguities(response.DESCRIPTOR, data)) == []
    assert_all_timed(response.FromString(data))


def test_a_reply_in_pieces(channel: grpc.Channel) -> None:
    """As above, in every piece."""
    inspect: Any = channel.unary_stream(f"/{SERVICE}/InspectStream")
    request = inspection_service_pb2.InspectStreamRequest(request=REQUEST).SerializeToString()
    messages = list(inspect(request))
    response = inspection_service_pb2.InspectStreamResponse
    assert [each for data in messages for each in ambiguities(response.DESCRIPTOR, data)] == []
    pieces = [response.FromString(data).piece for data in messages]
    kinds = [piece.WhichOneof("kind") for piece in pieces]
    assert kinds == ["header", *["chunk"] * (len(pieces) - 2), "trailer"]
    assert_all_timed(pieces[0].header.response)


DESCRIPTIONS: dict[str, tuple[Message, Any]] = {
    "ListModels": (inspection_service_pb2.ListModelsRequest(), inspection_service_pb2.ListModelsResponse),
    "GetModel": (
        inspection_service_pb2.GetModelRequest(model="net", operators=True, data_flow=True),
        inspection_service_pb2.GetModelResponse,
    ),
}


@pytest.mark.parametrize("method", DESCRIPTIONS)
def test_a_description(channel: grpc.Channel, method: str) -> None:
    """As above, of models."""
    request, response = DESCRIPTIONS[method]
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    data = call(request.SerializeToString())
    assert data
    assert list(ambiguities(response.DESCRIPTOR, data)) == []


def test_an_error(channel: grpc.Channel) -> None:
    """As above, in the details of a status, and in what these are packed as."""
    request = inspection_pb2.InspectRequest.FromString(REQUEST.SerializeToString())
    request.captures[0].module = "conv9"
    inspect: Any = channel.unary_unary(f"/{SERVICE}/Inspect")
    with pytest.raises(grpc.RpcError) as caught:
        inspect(request.SerializeToString())
    failure: Any = caught.value
    data = dict(failure.trailing_metadata())[DETAILS_KEY]
    assert list(ambiguities(status_pb2.Status.DESCRIPTOR, data)) == []
    kinds: dict[str, Descriptor] = error_details_pb2.DESCRIPTOR.message_types_by_name
    for packed in status_pb2.Status.FromString(data).details:
        kind = kinds[packed.type_url.removeprefix("type.googleapis.com/google.rpc.")]
        assert list(ambiguities(kind, packed.value)) == []
