"""How a question reaches an answer: as a call of our own front door, or of TorchServe's gRPC port."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from cutaway.errors import Code, CutawayError, InvalidArgument, Reason, error
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail, ModelName
from cutaway.v1 import inspection_pb2, inspection_service_pb2, worker_pb2
from cutaway.wire import models as wire_models
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results
from cutaway.wire import status
from cutaway.wire.pieces import chunk_in

T = TypeVar("T")

SERVICE = "cutaway.v1.InspectionService"
TORCHSERVE_PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"
TORCHSERVE_PING = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping"
TORCHSERVE_STREAM_PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions"
TORCHSERVE_SCHEME = "torchserve://"


@dataclass(frozen=True)
class Call(Generic[T]):
    """One unary call: the method's path, the request's bytes, and how to read the reply's."""

    path: str
    payload: bytes
    read: Callable[[bytes], T]


@dataclass(frozen=True)
class StreamCall:
    """One call whose reply comes as `cutaway.v1.InspectStreamResponse` messages."""

    path: str
    payload: bytes


class Routes(Protocol):
    """The calls that a client makes."""

    def inspect(self, request: InspectRequest) -> Call[InspectResult]:
        """Ask a question."""

    def inspect_stream(self, request: InspectRequest) -> StreamCall:
        """Ask a question whose answer comes in pieces."""

    def get_model(self, model: str, operators: bool) -> Call[ModelDetail]:
        """Describe one model; with ``operators``, those inside its modules too."""

    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """One page of the models, and the next page's token."""

    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """The exception for a failed call."""


class FrontDoor:
    """Calls of `cutaway.v1.InspectionService`."""

    def inspect(self, request: InspectRequest) -> Call[InspectResult]:
        """Ask a question."""
        return Call(f"/{SERVICE}/Inspect", wire_requests.encode(request).SerializeToString(), _result)

    def inspect_stream(self, request: InspectRequest) -> StreamCall:
        """Ask a question whose answer comes in pieces."""
        return StreamCall(f"/{SERVICE}/InspectStream", _in_pieces(request))

    def get_model(self, model: str, operators: bool) -> Call[ModelDetail]:
        """Describe one model; with ``operators``, those inside its modules too."""
        return Call(f"/{SERVICE}/GetModel", wire_models.encode_question(model, operators), _detail)

    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """One page of the models, and the next page's token."""
        request = inspection_service_pb2.ListModelsRequest(page_token=page_token)
        return Call(f"/{SERVICE}/ListModels", request.SerializeToString(), _page)

    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """The exception for a failed call."""
        return status.decode(code, details, trailers)


class TorchServeDirect:
    """Calls of TorchServe's own gRPC port, whose handler is ours.

    They carry no deadline inside, as the front door's do: this clock may not be the worker's.
    """

    def inspect(self, request: InspectRequest) -> Call[InspectResult]:
        """Ask a question."""
        payload = wire_requests.encode(request).SerializeToString()
        return Call(
            TORCHSERVE_PREDICTIONS,
            predictions(*parse_model(request.model), {"inspect": payload}),
            lambda data: _result(worker_response(prediction(data))),
        )

    def inspect_stream(self, request: InspectRequest) -> StreamCall:
        """Ask a question whose answer comes in pieces; it may have no more bytes than an answer in one message,
        because TorchServe keeps what is not read yet."""
        name, version = parse_model(request.model)
        return StreamCall(TORCHSERVE_STREAM_PREDICTIONS, predictions(name, version, {"stream": _in_pieces(request)}))

    def get_model(self, model: str, operators: bool) -> Call[ModelDetail]:
        """Describe one model; with ``operators``, those inside its modules too."""
        return Call(
            TORCHSERVE_PREDICTIONS,
            predictions(*parse_model(model), {"describe": wire_models.encode_question(model, operators)}),
            lambda data: _detail(worker_response(prediction(data))),
        )

    def list_models(self, page_token: str) -> Call[tuple[list[ModelName], str]]:
        """Not to be had: TorchServe lists its models on its management port only."""
        raise error(
            Reason.NOT_IMPLEMENTED,
            "TorchServe's inference port lists no models; ask the front door",
            "torchserve://",
        )

    def failure(self, code: int, details: str, trailers: Iterable[tuple[str, str | bytes]]) -> CutawayError:
        """The exception for a failed call."""
        return torchserve_failure(code, details)


def predictions(model: str, version: str, parts: Mapping[str, bytes]) -> bytes:
    """A serialised request to TorchServe."""
    return worker_pb2.TorchServePredictionsRequest(
        model_name=model, model_version=version, input=parts
    ).SerializeToString()


def batched(rows: Sequence[Mapping[str, bytes]]) -> bytes:
    """Several calls as one part of a call."""
    return worker_pb2.WorkerBatch(calls=[worker_pb2.WorkerCall(parts=row) for row in rows]).SerializeToString()


def replies(data: bytes) -> Sequence[bytes]:
    """What a worker replied to each of them; empty where all together are too much for one message."""
    with _readable():
        reply = worker_pb2.WorkerReply.FromString(data)
        if reply.HasField("failure"):
            raise status.from_failure(reply.failure)
        return worker_pb2.WorkerBatchReply.FromString(reply.response).replies


def prediction(data: bytes) -> bytes:
    """What the handler returned, from TorchServe's serialised reply."""
    with _readable():
        return worker_pb2.TorchServePredictionResponse.FromString(data).prediction


def worker_response(data: bytes) -> bytes:
    """The serialised response in a serialised `cutaway.v1.WorkerReply`.

    Raises:
        CutawayError: the one that the worker sent instead.
    """
    return answered(data).response


def passed(message: bytes) -> worker_pb2.StreamOpening | None:
    """A serialised `cutaway.v1.InspectStreamResponse` on its way from a worker: what there is to know of it, or None
    for a chunk.

    Raises:
        CutawayError: the failure that it holds; ``INTERNAL``, where it is no such message.
    """
    if chunk_in(message) is not None:
        return None
    with _readable():
        # Whatever is around a piece is TorchServe's message as well as ours.
        opening = worker_pb2.StreamOpening.FromString(prediction(message))
    if opening.HasField("failure"):
        raise status.from_failure(opening.failure)
    return opening


def answered(data: bytes) -> worker_pb2.WorkerReply:
    """The serialised `cutaway.v1.WorkerReply`, which holds a response.

    Raises:
        CutawayError: the failure that it holds instead; ``INTERNAL``, where it is no such reply.
    """
    with _readable():
        reply = worker_pb2.WorkerReply.FromString(data)
    if reply.HasField("failure"):
        raise status.from_failure(reply.failure)
    if not reply.HasField("response"):
        raise error(Reason.INTERNAL, "what answered is no worker of Cutaway's")
    return reply


def torchserve_failure(code: int, details: str) -> CutawayError:
    """TorchServe's own errors, whose codes mean little, told apart by their text (TorchServe 0.12, measured)."""
    details = details.partition("\n")[0]  # a Java class follows
    for mark, reason, field, message in _TORCHSERVE_SAYS:
        if mark in details:
            return error(reason, message or details, field)
    if code == Code.DEADLINE_EXCEEDED:
        return error(Reason.DEADLINE_EXCEEDED, "the deadline passed before TorchServe answered")
    return error(Reason.BACKEND_UNAVAILABLE, f"TorchServe: {details}")


_TORCHSERVE_SAYS = (
    ("Model not found", Reason.MODEL_NOT_FOUND, "model", ""),
    ("does not exist for model", Reason.VERSION_NOT_FOUND, "model", ""),
    ("Token Authorization failed", Reason.TOKEN_INVALID, "", "TorchServe takes no call without its token"),
    ("Worker died", Reason.WORKER_DIED, "", "the worker that had this call died; another one is starting"),
    ("direct buffer memory", Reason.OUT_OF_MEMORY, "", "TorchServe has too little memory for a message of this size"),
    ("RST_STREAM", Reason.REQUEST_TOO_LARGE, "", "TorchServe cut the call off, as it does when a request is too large"),
)


def parse_model(wanted: str) -> tuple[str, str]:
    """Name and version in ``digits`` or ``digits/versions/1.0``; the version is empty where there is none.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, where ``wanted`` is no model name at all.
    """
    parsed = re.fullmatch(r"(?:models/)?([^/]+)(?:/versions/([^/]+))?", wanted)
    if parsed is None:
        raise error(Reason.INVALID_VALUE, f"{wanted!r} is not of the form NAME or NAME/versions/VERSION", "model")
    return parsed[1], parsed[2] or ""


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (DecodeError, InvalidArgument) as failure:
        raise error(Reason.INTERNAL, f"the reply cannot be read; is the server newer? ({failure})") from None


def _in_pieces(request: InspectRequest) -> bytes:
    return inspection_service_pb2.InspectStreamRequest(request=wire_requests.encode(request)).SerializeToString()


def _result(data: bytes) -> InspectResult:
    with _readable():
        return wire_results.decode(inspection_pb2.InspectResponse.FromString(data))


def _detail(data: bytes) -> ModelDetail:
    with _readable():
        return wire_models.decode(inspection_service_pb2.GetModelResponse.FromString(data).model)


def _page(data: bytes) -> tuple[list[ModelName], str]:
    with _readable():
        page = inspection_service_pb2.ListModelsResponse.FromString(data)
    return [wire_models.decode_name(model) for model in page.models], page.next_page_token
