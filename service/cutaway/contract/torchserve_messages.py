"""Messages of TorchServe's gRPC port, and the worker's messages inside them.

TorchServe carries a call as named byte strings (parts) and a reply as one byte string. The client uses
this module for ``torchserve://`` addresses, and the gateway reads workers' replies with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from cutaway.contract.errors import Code, CutawayError, InvalidArgument, Reason, error
from cutaway.contract.tensors import Buffer
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.chunks import decode_chunk
from cutaway.contract.wire.worker_reply import Reply
from cutaway.v1 import worker_pb2

_SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
PREDICTIONS = f"{_SERVICE}/Predictions"
STREAM_PREDICTIONS = f"{_SERVICE}/StreamPredictions"
PING = f"{_SERVICE}/Ping"


def encode_call(model: str, version: str, parts: Mapping[str, bytes]) -> bytes:
    """Serialises a request of `PREDICTIONS` or `STREAM_PREDICTIONS`; an empty ``version`` is the default version."""
    return worker_pb2.TorchServePredictionsRequest(
        model_name=model, model_version=version, input=parts
    ).SerializeToString()


def decode_reply(data: bytes) -> bytes:
    """Returns what the handler returned, from a serialised reply of `PREDICTIONS`."""
    with decoding():
        return worker_pb2.TorchServePredictionResponse.FromString(data).prediction


def decode_worker_reply(data: Buffer) -> Reply:
    """Parses a `cutaway.v1.WorkerReply` with a response, which is not copied, or the number of a streamed one.

    Raises:
        CutawayError: the failure that the worker sent instead of it; ``INTERNAL`` if it sent nothing.
    """
    with decoding():
        reply = Reply.read(data)
    return _with_response(reply)


def _with_response(reply: Reply) -> Reply:
    """Returns ``reply`` if it has a response or a stream's number; else raises the worker's failure, or
    ``INTERNAL``."""
    if reply.beside.HasField("failure"):
        raise grpc_status.from_failure(reply.beside.failure)
    if not (reply.response or reply.beside.HasField("pieces")):
        raise error(Reason.INTERNAL, "the reply is not a cutaway.v1.WorkerReply")
    return reply


def decode_stream_opening(message: bytes) -> Reply | None:
    """Returns what a worker sent in place of a header; None for other pieces, which callers get as they are.

    Args:
        message: a serialised `cutaway.v1.InspectStreamResponse` with a piece of a worker.

    Raises:
        CutawayError: the failure in the message; ``INTERNAL`` if it has no piece of a worker.
    """
    if decode_chunk(message) is not None:
        return None
    with decoding():
        # The piece has the same field number in TorchServe's response and in ours.
        piece = worker_pb2.WorkerPiece.FromString(decode_reply(message))
    if piece.WhichOneof("kind") in ("trailer", "progress"):
        return None
    return _with_response(Reply.of_message(piece.reply))


def decode_error(code: int, details: str) -> CutawayError:
    """Translates TorchServe's own errors: its status codes mean little, so the text decides (measured on 0.12)."""
    details = details.partition("\n")[0]  # the second line is a Java class
    for mark, reason, field, message in _ERROR_TEXTS:
        if mark in details:
            return error(reason, message or details, field)
    if code == Code.DEADLINE_EXCEEDED:
        return error(Reason.DEADLINE_EXCEEDED, "the deadline passed before TorchServe replied")
    return error(Reason.BACKEND_UNAVAILABLE, f"TorchServe: {details}")


_ERROR_TEXTS = (
    ("Model not found", Reason.MODEL_NOT_FOUND, "model", ""),
    ("does not exist for model", Reason.VERSION_NOT_FOUND, "model", ""),
    ("Token Authorization failed", Reason.TOKEN_INVALID, "", "TorchServe accepts only calls with its token"),
    ("Worker died", Reason.WORKER_DIED, "", "the worker process died during this call; a new one is starting"),
    ("direct buffer memory", Reason.OUT_OF_MEMORY, "", "TorchServe has too little memory for a message of this size"),
    ("RST_STREAM", Reason.REQUEST_TOO_LARGE, "", "TorchServe aborted the call, as it does if a request is too large"),
)


class decoding:  # lower case, and a class, as `cutaway.contract.errors.at`
    """A context that turns every error of decoding a reply in the block into ``INTERNAL``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: object, trace: object) -> None:
        if isinstance(failure, (DecodeError, InvalidArgument)):
            what = f"the reply cannot be decoded; is the server newer? ({failure})"
            raise error(Reason.INTERNAL, what) from None
