"""The doors of a server: the same question by each protocol, and what came of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import reduce
from typing import Any, Literal, TypeAlias

import grpc
from connectrpc.client import ConnectClientSync
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.protocol import ProtocolType
from google.protobuf import json_format
from google.rpc import status_pb2

import cutaway as ca
from cutaway.client.connect_channel import _error
from cutaway.client.request_builder import build_request
from cutaway.client.transport import SERVICE
from cutaway.contract.errors import Reason, from_wire
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.chunks import joined
from cutaway.contract.wire.grpc_status import BytesCodec
from cutaway.v1 import inspection_pb2
from tests.support.mixed.mix import Outcome, Request

Ask: TypeAlias = Callable[[Request], Outcome]


def post(url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
    """The status, the headers and the body of a reply."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, dict(headers))) as reply:
            return reply.status, {key.lower(): value for key, value in reply.headers.items()}, reply.read()
    except urllib.error.HTTPError as failure:
        return failure.code, {key.lower(): value for key, value in failure.headers.items()}, failure.read()


@contextmanager
def doors(address: str, http_address: str, token: str | None = None) -> Iterator[dict[str, Ask]]:
    """Every door, by the name of its protocol."""
    url = f"http://{http_address}"
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    with ca.Client(address, token=token) as by_grpc, ca.Client(http_address, token=token, transport="connect") as other:
        yield {
            "grpc": _by(by_grpc),
            "connect": _by(other),
            "connect, in JSON": _connect_json(url, headers),
            "grpc-web": _grpc_web(url, headers),
            "rest": _rest(url, headers),
            "rest, in events": _rest(url, headers | {"accept": "text/event-stream"}),
        }


def _by(client: ca.Client) -> Ask:
    def ask(request: Request) -> Outcome:
        return outcome(lambda: client.inspect(request.model, request.inputs, **request.asked))

    return ask


def outcome(ask: Callable[[], Outcome]) -> Outcome:
    """What comes of a call."""
    try:
        return ask()
    except ca.CutawayError as failure:
        return failure


def seeded(request: Request) -> Request:
    """The same with a seed, for what draws numbers."""
    return replace(request, asked={"seed": 3, **request.asked})


def plain(result: ca.InspectResult) -> ca.InspectResult:
    """The result without what clients add to it."""
    return ca.InspectResult(**{each.name: getattr(result, each.name) for each in fields(ca.InspectResult)})


def message(request: Request) -> inspection_pb2.InspectRequest:
    """The request of the contract."""
    asked = {name: value for name, value in request.asked.items() if name not in ("stream", "timeout")}
    return wire_requests.encode(build_request(request.model, request.inputs, **asked))


def _connect_json(url: str, headers: Mapping[str, str]) -> Ask:
    def ask(request: Request) -> Outcome:
        text = json_format.MessageToJson(message(request)).encode()
        status, _, reply = post(f"{url}/{SERVICE}/Inspect", text, headers)
        if status == 200:
            return wire_results.decode(json_format.Parse(reply, inspection_pb2.InspectResponse()))
        told = json.loads(reply)
        found = status_pb2.Status(code=grpc.StatusCode[told["code"].upper()].value[0], message=told["message"])
        for each in told["details"]:
            value = each["value"]
            found.details.add(
                type_url=f"type.googleapis.com/{each['type']}", value=b64decode(value + "=" * (-len(value) % 4))
            )
        return grpc_status.decode(found.code, found.message, [(grpc_status.DETAILS_KEY, found.SerializeToString())])

    return lambda request: outcome(lambda: ask(request))


def _grpc_web(url: str, headers: Mapping[str, str]) -> Ask:
    from connectrpc.errors import ConnectError

    client = ConnectClientSync(
        url, codec=BytesCodec("proto"), protocol=ProtocolType.GRPC_WEB, accept_compression=(), send_compression=None
    )
    method: Any = MethodInfo(
        name="Inspect",
        service_name=SERVICE,
        input=bytes,
        output=bytes,
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=StreamType.UNARY,
    )
    own = {key: value for key, value in headers.items() if key != "content-type"}

    def ask(request: Request) -> Outcome:
        try:
            reply = client.execute_unary(request=message(request).SerializeToString(), method=method, headers=own)
        except ConnectError as failure:
            return _error(failure)
        return wire_results.decode(inspection_pb2.InspectResponse.FromString(reply))

    return lambda request: outcome(lambda: ask(request))


def _rest(url: str, headers: Mapping[str, str], verb: Literal["inspect"] = "inspect") -> Ask:
    def ask(request: Request) -> Outcome:
        asked = message(request)
        model, asked.model = asked.model, ""
        text = json_format.MessageToJson(asked).encode()
        status, told, reply = post(f"{url}/v1/models/{model}:{verb}", text, headers)
        if status != 200:
            return of_problem(reply)
        if told["content-type"].startswith("text/event-stream"):
            return _of_events(reply)
        return wire_results.decode(json_format.Parse(reply, inspection_pb2.InspectResponse()))

    return lambda request: outcome(lambda: ask(request))


def events_in(text: bytes) -> list[tuple[str, Any]]:
    """The events of a whole stream: the name of each, and its data."""
    *events, last = text.decode().split("\n\n")
    assert last == "", "the stream ends within an event"
    fields = [dict(line.split(": ", 1) for line in event.split("\n")) for event in events]
    return [(each.get("event", "message"), json.loads(each["data"])) for each in fields]


def _of_events(text: bytes) -> Outcome:
    """What the parts of a reply are together, or the error at their end."""
    *parts, (last, told) = events_in(text)
    if last == "error":
        return of_problem(json.dumps(told).encode())
    assert (last, told) == ("end", {})
    messages = (
        json_format.ParseDict(part, inspection_pb2.InspectResponse()) for name, part in parts if name == "message"
    )
    return reduce(joined, map(wire_results.decode, messages))


def of_problem(reply: bytes) -> ca.CutawayError:
    """The error that problem details tell."""
    told = json.loads(reply)
    reason = told.get("reason", "")
    code = Reason(reason).code if reason in set(Reason) else 0
    return from_wire(code, reason, told.get("detail", ""), told.get("field", ""))
