"""A question, and where it was asked."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from cutaway.errors import Reason, error
from cutaway.requests import InspectRequest, Raw
from cutaway.v1 import inspection_pb2
from cutaway.wire import requests as wire_requests

FILE = "question.json"
"""The file, in the contract's JSON, from which a program reads a question that it does not hold itself."""


class Question(NamedTuple):
    """A question.

    Attributes:
        request: the question.
        message: the same in the contract's form.
        in_file: whether programs read it from `FILE`: it was given without its inputs, or these are no plain texts.
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
    """
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
        raise error(Reason.INVALID_VALUE, f"is {address!r:.80}, not the URL of a server by HTTP", "address")
    message = inspection_pb2.InspectRequest.FromString(data)
    in_file = message.WhichOneof("input") is None
    if in_file:
        message.tensors.SetInParent()
    request = wire_requests.decode(message.SerializeToString())
    return Question(request, message, in_file or not all(map(_is_text, request.raw)), address, has_token)


def _is_text(example: Raw) -> bool:
    """Whether a client sends the same for the text alone."""
    try:
        example.data.decode()
    except UnicodeDecodeError:
        return False
    return example.media_type == "text/plain"
