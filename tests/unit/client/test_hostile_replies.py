"""A hostile server costs its client an error, not its memory: what a reply announces is compared with a limit first."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.wire import chunks
from cutaway.v1 import inspection_pb2, inspection_service_pb2, tensor_pb2
from tests.support.grpc_server import serving_methods

X = {"x": np.ones((1, 2), np.float32)}
FLOAT = tensor_pb2.DATA_TYPE_FLOAT32


@contextmanager
def answering(response: inspection_pb2.InspectResponse) -> Iterator[str]:
    """A server that answers every request with ``response``; in pieces, as the header of a stream that ends there."""
    header = inspection_service_pb2.StreamHeader(response=response)
    piece = inspection_service_pb2.InspectStreamResponse(piece=inspection_service_pb2.StreamPiece(header=header))
    methods: dict[str, Any] = {
        "Inspect": grpc.unary_unary_rpc_method_handler(lambda data, context: response.SerializeToString()),
        "InspectStream": grpc.unary_stream_rpc_method_handler(lambda data, context: iter([piece.SerializeToString()])),
    }
    with serving_methods(methods) as address:
        yield address


def reply(*tensors: tensor_pb2.Tensor) -> inspection_pb2.InspectResponse:
    named = [tensor_pb2.NamedTensor(name=f"t{number}", tensor=tensor) for number, tensor in enumerate(tensors)]
    return inspection_pb2.InspectResponse(predictions=inspection_pb2.Predictions(outputs=named))


def packed(elements: int) -> tensor_pb2.Tensor:
    """A tensor of a few bytes that states to unpack to ``elements`` numbers."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", elements * 4) + b"\x01\x00\x00"  # Zstandard: no content follows
    return tensor_pb2.Tensor(data_type=FLOAT, shape=[elements], data=frame, compression=tensor_pb2.COMPRESSION_ZSTD)


def refusals(response: inspection_pb2.InspectResponse, stream: bool, **arguments: Any) -> list[ca.CutawayError]:
    """What each client raises."""

    async def awaited(address: str) -> None:
        async with ca.AsyncClient(address) as client:
            await client.inspect("net", X, stream=stream, **arguments)

    with answering(response) as address:
        with ca.Client(address) as client, pytest.raises(ca.CutawayError) as plain:
            client.inspect("net", X, stream=stream, **arguments)
        with pytest.raises(ca.CutawayError) as later:
            asyncio.run(awaited(address))
    return [plain.value, later.value]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "response",
    [reply(packed(1 << 39)), reply(*[packed(1 << 28)] * 5)],
    ids=["one of 2 TiB", "five of 1 GiB"],
)
def test_a_reply_that_announces_more_than_memory_is_refused(
    response: inspection_pb2.InspectResponse, stream: bool
) -> None:
    """A few bytes that unpack to terabytes, or tensors that are too large together: an error that names both sizes."""
    for refusal in refusals(response, stream):
        assert (refusal.reason, refusal.field) == (Reason.REPLY_TOO_LARGE, "max_reply_bytes")
        assert f"this client accepts {4 << 30}" in refusal.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", [[1 << 60], [2] * 4000], ids=["2**60 elements", "4000 axes"])
def test_a_shape_that_no_array_has_is_refused(shape: list[int], stream: bool) -> None:
    """It is a damaged reply."""
    for refusal in refusals(reply(tensor_pb2.Tensor(data_type=FLOAT, shape=shape)), stream):
        assert refusal.reason == Reason.INTERNAL


@pytest.mark.parametrize("stream", [False, True])
def test_the_caller_may_allow_more(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply above the client's own limit is read where ``max_reply_bytes`` allows it; here it is damaged."""
    monkeypatch.setattr(chunks, "MAX_REPLY_BYTES", 1000)
    assert {each.reason for each in refusals(reply(packed(1000)), stream)} == {Reason.REPLY_TOO_LARGE}
    allowed = refusals(reply(packed(1000)), stream, max_reply_bytes=4000)
    assert {each.reason for each in allowed} == {Reason.INTERNAL}
