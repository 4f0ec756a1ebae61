"""`Question`: a request that a program repeats, and the address of its server."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.message_walk import parse, stated_bytes, tensors_in
from cutaway.v1 import inspection_pb2

FILE = "question.json"
"""The file, in the contract's JSON, from which a program reads a question that it does not hold itself."""

_MOST_INPUT_BYTES = 1 << 16
"""Inputs with more are read from `FILE`: the longest text that a program, or a command of the shell, holds well."""

_MOST_BYTES = 1 << 20
"""The most bytes of the tensors beside the inputs."""


class Question(NamedTuple):
    """A request that a program repeats.

    Attributes:
        request: the question; large inputs have no rows.
        message: the same in the contract's form.
        in_file: whether programs read it from `FILE`: it was given without its inputs, or these are large, or no plain
            texts.
        address: the server, ``http://127.0.0.1:8080/``.
        has_token: whether it was asked with a token.
    """

    request: InspectRequest
    message: inspection_pb2.InspectRequest
    in_file: bool
    address: str
    has_token: bool


def question_of(data: bytes, address: str, *, has_token: bool) -> Question:
    """Returns the question in a serialised `cutaway.v1.InspectRequest`, which may lack its inputs.

    Raises:
        InvalidArgument: it is no request, or ``address`` is no URL of HTTP.
        ResourceExhausted: ``REQUEST_TOO_LARGE``, for the tensors beside the inputs.
    """
    if not _is_address(address):
        raise error(Reason.INVALID_VALUE, f"is {address!r:.80}, not the URL of a server by HTTP", "address")
    message = parse(inspection_pb2.InspectRequest, data)
    in_file = message.WhichOneof("input") is None
    if in_file:
        message.tensors.SetInParent()
    if _input_bytes(message) > _MOST_INPUT_BYTES:
        in_file = True
        _drop_rows(message)
    size = sum(map(stated_bytes, tensors_in(message)))
    if size > _MOST_BYTES:
        problem = f"the tensors beside the inputs have {size} bytes; a program holds at most {_MOST_BYTES}"
        raise error(Reason.REQUEST_TOO_LARGE, problem)
    request = wire_requests.decode(message.SerializeToString())
    return Question(request, message, in_file or not all(map(_is_text, request.raw)), address, has_token)


def _is_address(address: str) -> bool:
    """Returns whether it is a URL of HTTP with a host, and nothing but a port and a path behind it."""
    try:
        parts = urlsplit(address)
        plain = f"{parts.scheme}://{parts.netloc}{parts.path}" == address and parts.port != 0
    except ValueError:
        return False
    known = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    return bool(known) and plain and address.isprintable() and " " not in address


def _input_bytes(message: inspection_pb2.InspectRequest) -> int:
    return sum(map(stated_bytes, tensors_in(message.tensors))) + sum(
        len(example.data) for example in message.raw.examples
    )


def _drop_rows(message: inspection_pb2.InspectRequest) -> None:
    """Leaves of each input its name, its type and the shape of a row; of raw bytes, their media type."""
    for tensor in tensors_in(message.tensors):
        tensor.ClearField("data")
        tensor.ClearField("compression")
        if tensor.shape:
            tensor.shape[0] = 0
    for example in message.raw.examples:
        example.data = b""


def _is_text(example: Raw) -> bool:
    """Returns whether a client sends the same for the text alone."""
    try:
        example.data.decode()
    except UnicodeDecodeError:
        return False
    return example.media_type == "text/plain"
