"""Replies of REST: the form that ``Accept`` asks for (RFC 9110, 12.5.1), and streams of server-sent events.

A stream has an event for each part of a reply, and ends with the event ``end`` or ``error``. Other streams of events
end with ``data: [DONE]``, which is no JSON. The form of events is that of the HTML standard, 9.2.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial

from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cutaway.contract.errors import CutawayError, Reason, error, release_frames
from cutaway.contract.results import InspectResult, Progress
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.chunks import ReplyAssembler, rest
from cutaway.contract.wire.message_walk import field_of
from cutaway.server.http import json_messages
from cutaway.server.http.guarded import problem, unless_gone
from cutaway.server.http.json_messages import MAX_JSON_BYTES, as_document, text_in_pieces
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.rpc.status import TranslatedCall
from cutaway.v1 import inspection_pb2, inspection_service_pb2

JSON, BINARY, EVENTS = "application/json", "application/proto", "text/event-stream"
NPY, NPZ = "application/x-npy", "application/x-npz"

_FIELD = "accept"
_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


def chosen(headers: Headers, offers: Sequence[str]) -> str:
    """Returns the media type of ``offers`` that a request takes rather than others; of equals the first.

    A media type that is named goes before one that is only in a range. Who names none of ``offers`` gets the first,
    unless it is refused.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if it is, or if a quality is no number from 0 to 1.
    """
    ranges = dict(_ranges(headers))
    ranks = {offer: _rank(offer, ranges) for offer in offers}
    best = max(offers, key=ranks.__getitem__)
    if ranks[best][0] > 0:
        return best
    if ranges.keys().isdisjoint(_matching(offers[0])):
        return offers[0]
    raise error(Reason.INVALID_VALUE, f"takes none of {', '.join(offers)}", _FIELD)


def _ranges(headers: Headers) -> Iterator[tuple[str, float]]:
    """Yields each range of media types, and its quality."""
    for text in ",".join(headers.getlist(_FIELD)).lower().split(","):
        name, *parameters = (part.strip() for part in text.split(";"))
        quality = next((each[2:].strip() for each in parameters if each.startswith("q=")), "1")
        if not _QUALITY.fullmatch(quality):
            raise error(Reason.INVALID_VALUE, f"a quality is {quality!r:.40}, and no number from 0 to 1", _FIELD)
        yield name, float(quality)


def _rank(offer: str, ranges: dict[str, float]) -> tuple[float, bool]:
    """Returns the quality of ``offer``, which the most specific range has, and whether it is named."""
    quality = next((ranges[name] for name in _matching(offer) if name in ranges), 0.0)
    return quality, offer in ranges


def _matching(offer: str) -> tuple[str, str, str]:
    return offer, f"{offer.partition('/')[0]}/*", "*/*"


def writer(verb: str, media_type: str) -> Callable[[bytes], bytes]:
    """Returns what makes the reply of a verb, of one of the media types but `EVENTS`, from an InspectResponse."""
    if verb == "inspect":
        return partial(json_messages.text_of, inspection_pb2.InspectResponse)
    if media_type != JSON:
        return partial(_written, json_messages.as_npz if media_type == NPZ else json_messages.as_npy)
    explains = verb == "explain"
    return partial(_written, lambda result: text_in_pieces(as_document(result, explains=explains)).encode())


def _written(write: Callable[[InspectResult], bytes], reply: bytes) -> bytes:
    message = inspection_pb2.InspectResponse.FromString(reply)
    del reply  # the largest reply may be here once, and twice while it is converted
    result = wire_results.decode(message)
    del message
    return write(result)


_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers that keep proxies from holding events back."""


async def streamed(servicer: Servicer, request: Request, data: bytes, verb: str, call: TranslatedCall) -> Response:
    """Returns the reply to a serialised InspectRequest as a stream of events.

    Raises:
        CutawayError: the call failed before its first event.
    """
    write = json_messages.part_of_contract if verb == "inspect" else json_messages.part_of_document
    events = _events(servicer, data, _Events(write), call)
    del data
    first = await unless_gone(request, anext(events))
    ending = BackgroundTask(events.aclose)  # also where the caller has gone
    return StreamingResponse(_following(first, events), headers=_HEADERS, media_type=EVENTS, background=ending)


async def _following(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event


async def _events(servicer: Servicer, data: bytes, made: _Events, call: TranslatedCall) -> AsyncGenerator[bytes, None]:
    """Yields the events of a call, which ends when the generator is closed."""
    options = inspection_service_pb2.InspectStreamRequest(in_parts=True).SerializeToString()
    asked = b"".join((*field_of(inspection_service_pb2.InspectStreamRequest.REQUEST_FIELD_NUMBER, data), options))
    del data
    begun = False
    try:
        async with aclosing(servicer.stream("InspectStream", asked, call)) as messages:
            async for message in messages:
                if event := await servicer.convert(made.add, message, call, made.cost(message)):
                    begun = True
                    yield event
        yield made.end()
    except CutawayError as failure:
        if not begun:
            raise
        release_frames(failure)
        yield _event(bytes(problem(failure).body), "error")


def _event(text: bytes, name: str = "") -> bytes:
    """Returns an event with JSON, which has no line breaks."""
    kind = f"event: {name}\n".encode() if name else b""
    return b"%sdata: %s\n\n" % (kind, text)


class _Events:
    """The events of one reply, from its messages; holds the reply, which is no larger than JSON may be.

    Args:
        write: returns a part of the reply, or how far it is, in JSON; is told whether it is the first part.
    """

    def __init__(self, write: Callable[[InspectResult | Progress, bool], bytes]) -> None:
        self._write = write
        self._reply = ReplyAssembler(in_parts=True)
        self._sent: InspectResult | None = None
        self._waiting = 0  # bytes of the next event

    def cost(self, message: bytes) -> int:
        """Returns how many bytes are converted if ``message``, the next one, completes an event."""
        self._waiting += len(message)
        return self._waiting

    def add(self, message: bytes) -> bytes:
        """Returns the event that the next message completes; nothing if it completes none.

        Raises:
            CutawayError: ``REPLY_TOO_LARGE``; ``INTERNAL`` if the reply is damaged.
        """
        reply, told = self._reply, self._reply.progress
        if reply.reply_bytes + len(message) > MAX_JSON_BYTES:
            what = f"the reply has more than {MAX_JSON_BYTES} bytes, the most that JSON holds"
            raise error(Reason.REPLY_TOO_LARGE, f"{what}; ask by gRPC or Connect, or for less")
        reply.add(message)
        if reply.progress is not None and reply.progress is not told:
            return _event(self._write(reply.progress, False), "progress")
        if reply.so_far is None or reply.so_far is self._sent:
            return b""
        is_first, sent = self._sent is None, self._sent or InspectResult({})
        self._sent, self._waiting = reply.so_far, 0
        return _event(self._write(rest(reply.so_far, sent), is_first))

    def end(self) -> bytes:
        """Returns the last event; raises ``INTERNAL`` if the reply is not whole."""
        self._reply.result()
        return _event(b"{}", "end")  # browsers drop an event without data
