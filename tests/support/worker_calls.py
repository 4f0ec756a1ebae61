"""A worker, asked in its own language: without a server, in the test's own thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.client.request_builder import build_request
from cutaway.client.transport import read_piece
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.chunks import (
    MAX_CHUNK_BYTES,
    Piece,
    ReplyAssembler,
    StreamEncoder,
    as_message,
    worker_piece,
)
from cutaway.contract.wire.worker_reply import with_header
from cutaway.engine.model.session import Cancellation
from cutaway.server.settings import Settings
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from cutaway.v1 import inspection_pb2
from cutaway.v1.inspection_service_pb2 import InspectStreamRequest
from cutaway.v1.worker_pb2 import RoutedStreamRequest, WorkerCall, WorkerReply
from tests.support.waiting import PATIENCE_S

REPLY_BYTES = 1 << 26


def worker(model: nn.Module | Adapter) -> Worker:
    """A worker with ``model``."""
    return Worker.of(model, "model", Settings(max_message_bytes=REPLY_BYTES))


def row(inputs: Any, *, deadline_s: float | None = None, **asked: Any) -> Call:
    """One call; ``deadline_s`` is how long the caller waits from now on."""
    request = wire_requests.encode(build_request("model", inputs, **asked))
    deadline = None if deadline_s is None else time.time() + deadline_s
    return Call("inspect", request.SerializeToString(), Cancellation(deadline))


def said(reply: bytes) -> str:
    """The whole reply of a worker but for times and passes: every number, verdict and warning, or the failure."""
    found = WorkerReply.FromString(reply)
    response = inspection_pb2.InspectResponse.FromString(found.response)
    response.ClearField("provenance")  # some passes test the model, now and then
    for attribution in response.attributions:
        attribution.ClearField("attribution_ms")
        attribution.ClearField("check_ms")
    return str(response) if found.response else f"{found.failure.reason} {found.failure.message}"


_NUMBERS = count(1)


def message(
    request: ca.InspectRequest, *, stream: bool = False, parts: bool = False, deadline_s: float = PATIENCE_S
) -> WorkerCall:
    """One call, as the gateway sends it; for a streamed reply, or one in parts."""
    call = WorkerCall(number=next(_NUMBERS), deadline=time.time() + deadline_s)
    asked = wire_requests.encode(request)
    if stream or parts:
        call.stream = InspectStreamRequest(request=asked, in_parts=parts).SerializeToString()
    else:
        call.inspect = asked.SerializeToString()
    return call


def pieces_of(result: ca.InspectResult, compression: str = "") -> list[Piece]:
    """The pieces of a result that a worker streams as a whole."""
    encoder = StreamEncoder(compression)
    header = worker_piece(with_header(encoder.header(result)))
    return [header, *encoder.chunks(result, MAX_CHUNK_BYTES), *encoder.trailer()]


def response(reply: bytes) -> bytes:
    """The serialised InspectResponse that a reply holds, as a caller gets it.

    Raises:
        CutawayError: the failure that it holds.
    """
    return decode_worker_reply(reply).complete()


def read(reply: bytes) -> ca.InspectResult:
    """What a reply holds.

    Raises:
        CutawayError: the failure that it holds.
    """
    return wire_results.decode(inspection_pb2.InspectResponse.FromString(response(reply)))


def in_parts(call: Call) -> Call:
    """The same call, with a streamed reply in parts."""
    request = RoutedStreamRequest(request=call.payload, in_parts=True)
    return call._replace(kind="stream", payload=request.SerializeToString())


def parts_of(asked: Worker, reply: bytes) -> Iterator[ca.InspectResult]:
    """The results so far in the parts of a streamed reply, the last one whole.

    Raises:
        CutawayError: the failure that it holds, or ends with.
    """
    pieces = asked.pieces.take(decode_worker_reply(reply).pieces)
    assert pieces is not None
    assembler, shown = ReplyAssembler(in_parts=True), None
    for piece in pieces:
        assembler.add(read_piece(as_message(piece).joined()))
        if assembler.so_far is not None and assembler.so_far is not shown:
            shown = assembler.so_far
            yield shown
    assembler.result()


def ask(asked: Worker, inputs: Mapping[str, Tensor], **what: Any) -> ca.InspectResult:
    """One call, answered."""
    (reply,) = asked.answer([row(inputs, **what)])
    return read(reply)


def outcome(reply: bytes) -> ca.InspectResult | ca.CutawayError:
    """What a reply holds, be it a failure."""
    try:
        return read(reply)
    except ca.CutawayError as failure:
        return failure
