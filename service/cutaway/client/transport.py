"""The gRPC calls that a client makes: of the gateway, or of TorchServe's own gRPC port."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from cutaway.contract import torchserve_messages as torchserve
from cutaway.contract.errors import Code, CutawayError, Reason, at, error
from cutaway.contract.requests import InspectRequest, Point
from cutaway.contract.results import (
    InspectResult,
    ModelDetail,
    ModelName,
    Progress,
    UnservedArchive,
)
from cutaway.contract.tensors import Array
from cutaway.contract.torchserve_messages import decoding
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.chunks import ReplyAssembler, check_reply_memory, header_message
from cutaway.contract.wire.message_walk import field_of
from cutaway.v1 import inspection_pb2, inspection_service_pb2
from cutaway.views.inspection import Inspection

T = TypeVar("T")

_REQUEST = inspection_service_pb2.InspectStreamRequest.REQUEST_FIELD_NUMBER

SERVICE = "cutaway.v1.InspectionService"
TORCHSERVE_SCHEME = "torchserve://"


@dataclass(frozen=True)
class Call(Generic[T]):
    """A call of a server.

    Attributes:
        path: of the method.
        payload: the serialised request.
        read: parses the reply; of a streamed one each message, to a `cutaway.v1.InspectStreamResponse`.
    """

    path: str
    payload: bytes
    read: Callable[[bytes], T]


class Transport(ABC):
    """The calls of one kind of server."""

    def inspect(self, request: InspectRequest) -> Call[InspectResult]:
        """Returns the call for a request."""
        payload = wire_requests.serialize(request)
        return self._call("inspect", request.model, payload, partial(_decode_result, request.max_reply_bytes))

    def get_model(self, model: str, operators: bool, example: bool, data_flow: bool) -> Call[ModelDetail]:
        """Returns the call that describes a model, on request with its operators, its example and its data flow."""
        check_text(model, "model")
        more = {"operators": operators, "example": example, "data_flow": data_flow}
        with at("model"):
            request = wire_models.encode_model_request(model, **more)
        return self._call("describe", model, request, _decode_detail)

    def inspect_stream(self, request: InspectRequest, in_parts: bool) -> Call[bytes]:
        """Returns the call for a request with a streamed reply, on request in parts."""
        options = inspection_service_pb2.InspectStreamRequest(in_parts=in_parts).SerializeToString()
        message = b"".join((*field_of(_REQUEST, wire_requests.serialize(request)), options))
        return self._call("stream", request.model, message, bytes)

    @abstractmethod
    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """Returns the call for one page of models; its result is the models and the token of the next page."""

    @abstractmethod
    def list_unserved(self) -> Call[list[UnservedArchive]]:
        """Returns the call for the archives that are not served."""

    @abstractmethod
    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """Returns the exception for a failed call."""

    @abstractmethod
    def _call(self, kind: str, model: str, payload: bytes, read: Callable[[bytes], T]) -> Call[T]:
        """Returns a call of the kind ``inspect``, ``describe`` or ``stream``."""


class GatewayTransport(Transport):
    """Calls of `cutaway.v1.InspectionService`."""

    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """Returns the call for one page of models; its result is the models and the token of the next page."""
        request = inspection_service_pb2.ListModelsRequest(page_token=page_token)
        return Call(f"/{SERVICE}/ListModels", request.SerializeToString(), _decode_page)

    def list_unserved(self) -> Call[list[UnservedArchive]]:
        """Returns the call for the archives that are not served."""
        request = inspection_service_pb2.ListModelsRequest(page_size=1)
        return Call(f"/{SERVICE}/ListModels", request.SerializeToString(), _decode_unserved)

    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """Returns the exception for a failed call."""
        return grpc_status.decode(code, details, trailers)

    def _call(self, kind: str, model: str, payload: bytes, read: Callable[[bytes], T]) -> Call[T]:
        return Call(f"/{SERVICE}/{_METHODS[kind]}", payload, read)


_METHODS = {"inspect": "Inspect", "describe": "GetModel", "stream": "InspectStream"}


_NO_LIST = "TorchServe's inference port lists no models; connect to the gateway instead"


class TorchServeTransport(Transport):
    """Calls of TorchServe's own gRPC port, whose workers run our handler.

    The requests contain no deadline, unlike the gateway's: the client's clock may differ from the worker's. A streamed
    reply is limited to the size of one message, because TorchServe buffers what the client has not read.
    """

    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """Raises ``NOT_IMPLEMENTED``: TorchServe lists its models on its management port only."""
        raise error(Reason.NOT_IMPLEMENTED, _NO_LIST, "torchserve://")

    def list_unserved(self) -> Call[list[UnservedArchive]]:
        """Raises ``NOT_IMPLEMENTED``: TorchServe knows no model store of ours."""
        raise error(Reason.NOT_IMPLEMENTED, _NO_LIST, "torchserve://")

    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """Returns the exception for a failed call."""
        return torchserve.decode_error(code, details)

    def _call(self, kind: str, model: str, payload: bytes, read: Callable[[bytes], T]) -> Call[T]:
        streams = kind == "stream"
        path = torchserve.STREAM_PREDICTIONS if streams else torchserve.PREDICTIONS
        unwrap = read_piece if streams else _read_reply
        return Call(path, torchserve.encode_call(*parse_model(model), {kind: payload}), lambda data: read(unwrap(data)))


def _read_reply(message: bytes) -> bytes:
    """Returns the reply that a gateway makes of a worker's in one message."""
    return torchserve.decode_worker_reply(torchserve.decode_reply(message)).complete()


def read_piece(message: bytes) -> bytes:
    """Converts a message of TorchServe's stream to the message that a gateway sends for it.

    Both are a serialised ``InspectStreamResponse``.

    Raises:
        CutawayError: the failure in the message; ``INTERNAL`` if it has no piece of a worker.
    """
    opening = torchserve.decode_stream_opening(message)
    return message if opening is None else header_message(opening.complete())


def check_text(value: object, field: str) -> None:
    """Raises ``INVALID_VALUE``, with ``field``, unless ``value`` is a text."""
    if not isinstance(value, str):
        raise error(Reason.INVALID_VALUE, f"{value!r:.200} is no text", field)


@lru_cache(256)
def parse_model(model: str) -> tuple[str, str]:
    """Splits ``digits`` or ``digits/versions/1.0`` into name and version; the version is empty if none is given.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, if ``model`` is not a model name.
    """
    parsed = re.fullmatch(r"(?:models/)?([^/]+)(?:/versions/([^/]+))?", model)
    if parsed is None:
        raise error(Reason.INVALID_VALUE, f"{model!r} is not of the form NAME or NAME/versions/VERSION", "model")
    return parsed[1], parsed[2] or ""


def _decode_result(allowed_bytes: int, data: bytes) -> InspectResult:
    try:
        with decoding():
            response = inspection_pb2.InspectResponse.FromString(data)
            check_reply_memory(response, allowed_bytes)
            return wire_results.decode(response)
    except MemoryError:
        raise error(Reason.OUT_OF_MEMORY, "the reply is larger than the memory that the client has") from None


def _decode_detail(data: bytes) -> ModelDetail:
    with decoding():
        return wire_models.decode(inspection_service_pb2.GetModelResponse.FromString(data).model)


def _decode_page(data: bytes) -> tuple[list[ModelName], str]:
    with decoding():
        page = inspection_service_pb2.ListModelsResponse.FromString(data)
    return [wire_models.decode_name(model) for model in page.models], page.next_page_token


def _decode_unserved(data: bytes) -> list[UnservedArchive]:
    with decoding():
        page = inspection_service_pb2.ListModelsResponse.FromString(data)
        return [wire_models.decode_unserved(item) for item in page.unserved]


@dataclass(frozen=True)
class GeneratedToken:
    """One token of one row, as it is written.

    Attributes:
        row: the row.
        step: the step, from 0.
        id: the token's id.
        text: the text that it adds; ``""`` where a character is not complete.
        log_probability: the logarithm of its probability, by the softmax of the model's logits.
        captures: the output of the first call of each captured module in this step, of this row.
    """

    row: int
    step: int
    id: int
    text: str
    log_probability: float
    captures: Mapping[str, Array] = field(default_factory=dict)


def _tokens_of_steps(result: InspectResult, before: InspectResult | None) -> Iterator[GeneratedToken]:
    """Yields the tokens that ``result`` has and ``before``, the result at an earlier time, has not."""
    known = before or InspectResult({})
    captured: dict[str, Array] = {}
    for name, capture in result.captures.items():
        new = capture.calls[len(known.captures[name].calls) if name in known.captures else 0 :]
        outputs = new[0].leaves.get(Point.OUTPUT, {}) if new else {}
        if outputs and (array := next(iter(outputs.values()))).ndim:
            captured[name] = array
    for number, step in enumerate(result.generated[len(known.generated) :], len(known.generated)):
        for row, (token, text, value) in enumerate(zip(step.tokens, step.texts, step.log_probabilities)):
            if token >= 0:
                own = {name: array[row] for name, array in captured.items()}
                yield GeneratedToken(row, number, token, text, value, own)


Messages = TypeVar("Messages")


class _BaseReplyStream(Generic[Messages]):
    """The base of the blocking and the asynchronous stream, which differ only in how they wait.

    A lost reply is requested once more, as long as the caller has got no tensor of it. A gateway does the same for a
    reply in one message when a worker dies during another call. A server that knows no parts is asked for the whole.

    Args:
        send: sends the request with a timeout in seconds, on request for a reply in parts; returns its messages.
        timeout: seconds that the whole reply may take, from the first read.
        request: the request that ``send`` sends.
        in_parts: whether to request the parts of the reply as they exist.
        on_progress: called with how far the attributions are.
    """

    def __init__(
        self,
        send: Callable[[float, bool], Messages],
        timeout: float,
        request: InspectRequest,
        *,
        in_parts: bool = True,
        on_progress: Callable[[Progress], object] = lambda progress: None,
    ) -> None:
        self._send = send
        self._request = request
        self._in_parts = in_parts
        self._on_progress = on_progress
        self._timeout = timeout
        self._deadline = 0.0  # set at the first read
        self._may_retry = True
        self._begin(timeout)

    @property
    def progress(self) -> Progress | None:
        """How far the attributions were at the last message that said so; None if none did, as in the first second."""
        return self._assembler.progress

    @property
    def reply_bytes(self) -> int:
        """The number of bytes that have arrived."""
        return self._assembler.reply_bytes

    def _begin(self, timeout: float) -> None:
        self._messages = self._send(timeout, self._in_parts)
        self._assembler = ReplyAssembler(self._request.max_reply_bytes, self._in_parts)
        self._shown: InspectResult | None = None

    def _start(self) -> None:
        self._deadline = self._deadline or time.monotonic() + self._timeout

    def _add(self, message: bytes) -> list[Array]:
        """Adds a message of the reply, and returns the tensors that it completes."""
        before = self._assembler.progress
        completed = self._assembler.add(message)
        if self._assembler.progress is not None and self._assembler.progress is not before:
            self._on_progress(self._assembler.progress)
        return completed

    def _next_part(self) -> Inspection | None:
        """Returns the result so far, if it has grown since the last time."""
        if self._assembler.so_far is self._shown or self._assembler.so_far is None:
            return None
        self._shown, self._may_retry = self._assembler.so_far, False
        return Inspection.of(self._shown, self._request)

    def _next_tokens(self) -> list[GeneratedToken]:
        """Returns the tokens of a generation that have come since the last time."""
        before, now = self._shown, self._assembler.so_far
        if now is None or now is before:
            return []
        self._shown = now
        tokens = [*_tokens_of_steps(now, before)]
        self._may_retry &= not tokens
        return tokens

    def _prepare_retry(self, failure: CutawayError) -> float:
        """Prepares to send the request again; returns the seconds to wait before that.

        Raises:
            CutawayError: ``failure``, where there is no retry.
        """
        pause = failure.retry_after_s or 0.0
        left = self._deadline - time.monotonic() - pause
        is_older = self._in_parts and failure.reason == Reason.UNKNOWN_FIELD and not failure.field
        if not (is_older or (self._may_retry and failure.code == Code.UNAVAILABLE)) or left <= 0:
            raise failure
        if is_older:
            self._in_parts = False
        else:
            self._may_retry = False
        self._begin(left)
        return pause


class ReplyStream(_BaseReplyStream[Generator[bytes, None, None]]):
    """A reply that arrives tensor by tensor.

    Iterate over it for ``(name, array)``, such as ``("capture:conv1@output", ...)``, as soon as a tensor is complete.
    Predictions, captures and gradients come first, then each attribution when it is done. With ``generate``, iterate
    over it for each `GeneratedToken` as it is written. `parts` returns results instead of tensors. `result` returns the
    whole reply. Leaving the ``with`` block cancels the call.

    The arrays are those of the result, and read-only. Checksums are compared at the end: `result` and the iterations
    raise ``INTERNAL`` if one differs. The server may cancel the call if nothing is read for ten seconds.
    """

    def __iter__(self) -> Iterator[Any]:
        return self.tokens() if self._request.generate else self._tensors()

    def tokens(self) -> Iterator[GeneratedToken]:
        """Yields the tokens of a generation as they are written.

        Raises:
            CutawayError: as `result`; what was yielded before is right.
        """
        for _ in self._arriving():
            yield from self._next_tokens()
        self._assembler.result()

    def _tensors(self) -> Iterator[tuple[str, Array]]:
        for tensors in self._arriving():
            for name, array in self._assembler.named(tensors):
                self._may_retry = False
                yield name, array
        self._assembler.result()

    def parts(self) -> Iterator[Inspection]:
        """Yields the result so far, whenever it has grown.

        First it has predictions, captures and gradients, then one attribution more each time; the last one is whole.

        Raises:
            CutawayError: as `result`; what was yielded before is right.
        """
        for _ in self._arriving():
            if (part := self._next_part()) is not None:
                yield part
        self._assembler.result()

    def result(self) -> Inspection:
        """Waits for the rest of the reply and returns the whole result.

        Raises:
            CutawayError: with a stable reason, and the field at fault; ``INTERNAL``, if the reply is damaged.
        """
        for _ in self._arriving():
            pass
        return Inspection.of(self._assembler.result(), self._request)

    def _arriving(self) -> Iterator[list[Array]]:
        """Yields, for each message of the reply, the tensors that the message completes. Repeats the request after some
        errors, as `_prepare_retry` decides."""
        self._start()
        while True:
            try:
                for message in self._messages:
                    yield self._add(message)
                return
            except CutawayError as failure:
                time.sleep(self._prepare_retry(failure))

    def close(self) -> None:
        """Cancels the call."""
        self._messages.close()

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class AsyncReplyStream(_BaseReplyStream[AsyncGenerator[bytes, None]]):
    """`ReplyStream` for asyncio."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self.tokens() if self._request.generate else self._tensors()

    async def tokens(self) -> AsyncIterator[GeneratedToken]:
        """Does what `ReplyStream.tokens` does."""
        async for _ in self._arriving():
            for token in self._next_tokens():
                yield token
        self._assembler.result()

    async def _tensors(self) -> AsyncIterator[tuple[str, Array]]:
        async for tensors in self._arriving():
            for name, array in self._assembler.named(tensors):
                self._may_retry = False
                yield name, array
        self._assembler.result()

    async def parts(self) -> AsyncIterator[Inspection]:
        """Does what `ReplyStream.parts` does."""
        async for _ in self._arriving():
            if (part := self._next_part()) is not None:
                yield part
        self._assembler.result()

    async def result(self) -> Inspection:
        """Does what `ReplyStream.result` does."""
        async for _ in self._arriving():
            pass
        return Inspection.of(self._assembler.result(), self._request)

    async def _arriving(self) -> AsyncIterator[list[Array]]:
        self._start()
        while True:
            try:
                async for message in self._messages:
                    yield self._add(message)
                return
            except CutawayError as failure:
                await asyncio.sleep(self._prepare_retry(failure))

    async def close(self) -> None:
        """Cancels the call."""
        await self._messages.aclose()

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()
