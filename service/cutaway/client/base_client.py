"""The base of the blocking and the asynchronous client, which differ only in how they wait.

A call is a generator. It yields what `BaseClient._send` and the results of streams return, which the asynchronous
client awaits, and receives the value; `_run` of each client drives it.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

import grpc
import numpy as np

from cutaway.client.connect_channel import require_connect
from cutaway.client.request_builder import (
    AttackLike,
    AttributionLike,
    CaptureLike,
    CheckLike,
    ConceptsLike,
    CounterfactualLike,
    DirectLike,
    EditLike,
    ExplainIfLike,
    GenerateLike,
    InfluenceLike,
    Inputs,
    SweepLike,
    TargetLike,
    build_request,
    examples_in,
    inspect_advice,
    signature,
)
from cutaway.client.transport import (
    SERVICE,
    TORCHSERVE_SCHEME,
    Call,
    GatewayTransport,
    TorchServeTransport,
    Transport,
    check_text,
)
from cutaway.client.trust import Tls, is_loopback, make_trust
from cutaway.contract.addresses import UNIX, check_target
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import Argument, CheckMode, InspectRequest
from cutaway.contract.requests.fields import advising
from cutaway.contract.results import InspectResult, ModelName, Progress
from cutaway.contract.results.arrays import tensors
from cutaway.contract.wire.grpc_status import with_address
from cutaway.views.inspection import Inspection
from cutaway.views.progress import bar

# Large replies are requested as a stream. A reply is expected to be as large as the last one to a similar request.
# Before the first one, the client requests an estimate, unless the request is too small for a large reply.

LARGE_BYTES = 1 << 20
"""The size above which a streamed reply of few tensors is faster than one message."""

_TENSOR_BYTES = 1 << 18
"""Counts for a message of a stream, which each tensor has: so many bytes take as long."""

_MOST_BYTES = 1 << 24
"""Limits replies in one message, which may not hold more."""

_SMALL_REQUEST_BYTES = LARGE_BYTES // 16
"""The size of a request up to which an estimate costs more than it saves.

A reply that is large nevertheless comes in one message, or is requested again as a stream.
"""

_MAX_REMEMBERED = 1024


class ReplySizes:
    """Reply bytes per example of the requests of one client, by the kind of request. Threads may share it."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[Hashable, float] = OrderedDict()

    def is_large(self, request: InspectRequest) -> bool:
        """Returns whether the reply to ``request`` should be streamed."""
        return self._bytes.get(signature(request), 0.0) * examples_in(request) > LARGE_BYTES

    def needs_estimate(self, request: InspectRequest) -> bool:
        """Returns whether the client should request an estimate first."""
        sent = sum(array.nbytes for array in request.tensors.values()) + sum(len(raw.data) for raw in request.raw)
        return sent > _SMALL_REQUEST_BYTES and signature(request) not in self._bytes

    def note(self, request: InspectRequest, reply_bytes: int, result: InspectResult | None = None) -> None:
        """Remembers the size of the reply to ``request``, or its estimate; of a ``result`` of many tensors less."""
        if result is not None and LARGE_BYTES < reply_bytes < _MOST_BYTES:
            reply_bytes -= _TENSOR_BYTES * sum(1 for _ in tensors(result))
        self._bytes[signature(request)] = reply_bytes / examples_in(request)
        while len(self._bytes) > _MAX_REMEMBERED:
            self._bytes.popitem(last=False)


def exceeds_one_message(failure: CutawayError) -> bool:
    """Returns whether a reply was refused because one message cannot hold it, not because of the caller's own limit."""
    return failure.reason == Reason.REPLY_TOO_LARGE and not failure.field


_TIMEOUT_S = 2.0


def speaks_tls(target: str) -> bool:
    """Returns whether the server at ``target``, a ``host:port``, answers a TLS handshake; sends it nothing else.

    Its certificate is not verified: nothing that it sends is used.
    """
    host, _, port = target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        address = (host.removeprefix("[").removesuffix("]"), int(port))
        with socket.create_connection(address, _TIMEOUT_S) as plain, context.wrap_socket(plain, server_hostname=host):
            return True
    except (OSError, ValueError):  # unreachable, or the answer is no TLS; an address in another form
        return False


_OPTIONS = (
    # Protobuf reads no larger messages.
    ("grpc.max_receive_message_length", 2**31 - 1),
    ("grpc.max_send_message_length", -1),
    # By default, gRPC tries again after up to two minutes.
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
"""Options of every gRPC channel."""

_KEPT_ALIVE = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # a minute by default, for which the other timeout does nothing
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of a channel to a gateway, which permits this: a connection that a load balancer dropped is noticed."""

_SPREADING = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": SERVICE}}
"""gRPC's service config for an address of several servers: calls go to the serving ones in turn."""

T = TypeVar("T")
Inspected = TypeVar("Inspected")
Streamed = TypeVar("Streamed")

OnProgress: TypeAlias = Callable[[Progress], object]
"""A function that is called with how far the attributions of a request are."""

Steps: TypeAlias = Generator[Any, Any, T]
"""A call that returns a ``T``; see the module's docstring."""


class BaseClient(ABC, Generic[Inspected, Streamed]):
    """A connection to a server.

    Args:
        address: ``host:port`` of a gateway, or ``unix:/path``; ``dns:///name:port`` or ``ipv4:host:port,host:port`` of
            several servers, whose serving ones get the calls in turn; or ``torchserve://host:port`` of TorchServe's own
            gRPC port.
        timeout: seconds that a call may take, unless the call says otherwise; ``math.inf`` for the longest, 11 days.
        token: the caller's token, for servers that need one; it is sent to another machine only inside TLS. The token
            of a TorchServe that ``cutaway serve`` started is known to that command only.
        tls: True for an encrypted connection to a server with a certificate that the system trusts; a `Tls` says which
            certificates to trust.
        transport: ``connect`` calls by HTTP/1.1, which every proxy passes; the address is then the server's ``--http``.
            Needs the extra ``cutaway[connect]``. It is slower than ``grpc``.
    """

    _grpc: Any
    """`grpc` or `grpc.aio`."""

    _connect: Any
    """`ConnectChannel` or `AsyncConnectChannel`."""

    _reply_stream: Any
    """`ReplyStream` or `AsyncReplyStream`."""

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 60.0,
        token: str | None = None,
        tls: bool | Tls = False,
        transport: Literal["grpc", "connect"] = "grpc",
    ) -> None:
        if transport not in ("grpc", "connect"):
            raise error(Reason.INVALID_VALUE, f"{transport!r} is neither grpc nor connect", "transport")
        self._transport, self._target = _transport_for(address)
        self._trust = make_trust(self._target, token, tls)
        if transport == "connect":
            if self._target.startswith(UNIX):
                raise error(Reason.INVALID_VALUE, "calls by HTTP go to HOST:PORT, and no Unix socket", "address")
            require_connect()
            self._make_channel = partial(self._connect, self._target, tls)
        else:
            options = _options(self._target, self._transport)
            self._make_channel = partial(self._trust.channel, self._grpc, self._target, options)
        self._channels: MutableMapping[Any, Any] = {}
        self._is_closed = False
        self._timeout = _checked_timeout(timeout)
        self._sizes = ReplySizes()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._target}{', closed' if self._is_closed else ''}>"

    @advising(inspect_advice)
    def inspect(
        self,
        model: str,
        inputs: Inputs,
        *,
        target: TargetLike = None,
        captures: Sequence[CaptureLike] | CaptureLike = (),
        input_gradients: bool | Sequence[str] | str = False,
        attributions: Sequence[AttributionLike] | AttributionLike = (),
        arguments: Mapping[str, Argument] = MappingProxyType({}),
        attribution_errors_in_place: bool = False,
        explain_if: ExplainIfLike | None = None,
        edits: Sequence[EditLike] | EditLike = (),
        compare: bool = False,
        check: CheckLike = CheckMode.SAME_PASS,
        predictions: bool = True,
        max_reply_bytes: int = 0,
        seed: int | None = None,
        reply_data_type: str = "",
        compression: str = "",
        dry_run: bool = False,
        generate: GenerateLike | None = None,
        sweep: SweepLike | None = None,
        direct: DirectLike | None = None,
        attacks: Sequence[AttackLike] | AttackLike = (),
        concepts: ConceptsLike | None = None,
        influence: InfluenceLike | None = None,
        agreement: bool = False,
        counterfactual: CounterfactualLike | None = None,
        stream: bool | None = None,
        progress: bool | OnProgress = False,
        timeout: float | None = None,
    ) -> Inspected:
        """Runs a model on inputs and returns its predictions, with what else is requested.

        Args:
            model: ``digits``, or ``digits/versions/1.0``.
            inputs: arrays by forward-argument name, batch first: of numpy or torch, or lists of numbers. One array, if
                the model has one input. Or a table of pandas, Polars or PyArrow, whose columns must have the names and
                the order of the model's features, if both have names. Or examples for the model to decode: a `Raw`, a
                text, a Pillow image, several.
            target: None for the predicted class, a class index or label for all examples, one an example, or a
                `Target`.
            captures: tensors inside the model to return; a bare name or glob returns outputs, ``conv*@input`` inputs.
            input_gradients: True for every floating input, or names.
            attributions: the attributions to compute; for a method without parameters its name is enough, with a layer
                ``layer_grad_cam:conv2``. Parts of a request may also be mappings of their fields, as in files.
            arguments: by name, the arguments of forward that are no tensors: truth values, numbers, texts, None.
            attribution_errors_in_place: True returns the error of an attribution in its place, and the rest of the
                result; False raises it.
            explain_if: explain only the examples whose prediction meets this condition; None explains all.
            edits: changes to tensors inside the model, in the order applied.
            compare: return also the predictions of the model without the edits.
            check: ``off``, ``same_pass`` or ``independent``, or a `CheckRequest` with a tolerance.
            predictions: False leaves the predictions out. Forward then stops after the last captured value, if only
                values inside the model are requested and all captures name their ``call``.
            max_reply_bytes: the largest reply to accept; 0 is the server's limit. Whatever a server sends, the client
                allocates at most 4 GiB for the tensors of a reply, or this if it is more.
            seed: of what draws random numbers, 0 to 2**63 - 1; None draws a seed, which the provenance contains. Row
                ``r`` of a generation draws its tokens from the seed plus ``r``.
            reply_data_type: the type of floating tensors in the reply: ``float16``, ``bfloat16``, ``float32``,
                ``float64``, or ``""`` for the type as computed. A capture's own ``data_type`` takes precedence.
            compression: ``zstd`` compresses the tensors of the reply and needs the extra ``cutaway[zstd]``; ``""``
                does not compress.
            dry_run: True returns only the ``estimate`` of the reply, its size and shapes; costs one forward pass.
            generate: writes tokens behind the inputs, for causal language models: `Generate`.
            sweep: computes the target for each of a grid of patches: `Sweep`, or a glob of modules.
            direct: computes what each part of the residual stream adds to the target: `Direct`.
            attacks: changes the inputs so that the loss of the target rises, and tells what that changes: `FGSM`,
                `PGD`.
            concepts: tests the target with concepts: `TCAV`.
            influence: finds the training rows that made the predictions: `Influence`.
            agreement: True compares each pair of attributions of the same places and the same target.
            counterfactual: looks for small changes that change the class: `Counterfactual`.
            stream: True receives the reply in pieces, which large ones need; False in one message; None chooses. The
                result is the same.
            progress: True shows a bar on a terminal or in a notebook, if the attributions take more than a second; a
                function is called with each `Progress` instead. Both need a reply in pieces.
            timeout: seconds that the call may take; None is the client's.

        Raises:
            CutawayError: with a stable reason, and the field at fault.
        """
        return self.ask(_request(locals()), stream=stream, progress=progress, timeout=timeout)

    @advising(inspect_advice)
    def inspect_stream(
        self,
        model: str,
        inputs: Inputs,
        *,
        target: TargetLike = None,
        captures: Sequence[CaptureLike] | CaptureLike = (),
        input_gradients: bool | Sequence[str] | str = False,
        attributions: Sequence[AttributionLike] | AttributionLike = (),
        arguments: Mapping[str, Argument] = MappingProxyType({}),
        attribution_errors_in_place: bool = False,
        explain_if: ExplainIfLike | None = None,
        edits: Sequence[EditLike] | EditLike = (),
        compare: bool = False,
        check: CheckLike = CheckMode.SAME_PASS,
        predictions: bool = True,
        max_reply_bytes: int = 0,
        seed: int | None = None,
        reply_data_type: str = "",
        compression: str = "",
        dry_run: bool = False,
        generate: GenerateLike | None = None,
        sweep: SweepLike | None = None,
        direct: DirectLike | None = None,
        attacks: Sequence[AttackLike] | AttackLike = (),
        concepts: ConceptsLike | None = None,
        influence: InfluenceLike | None = None,
        agreement: bool = False,
        counterfactual: CounterfactualLike | None = None,
        timeout: float | None = None,
    ) -> Streamed:
        """Does what `inspect` does, with the same arguments, and returns the reply as it arrives: tensor by tensor, or
        part by part, predictions first; with ``generate`` token by token.

        The request is sent, and its errors are raised, when the first of them is read.
        """
        return self.ask_stream(_request(locals()), timeout=timeout)

    def ask(
        self,
        request: InspectRequest,
        *,
        stream: bool | None = None,
        progress: bool | OnProgress = False,
        timeout: float | None = None,
    ) -> Inspected:
        """Does what `inspect` does, for a complete request."""
        asked = (
            self._inspect_showing(request, progress, timeout) if progress else self._inspect(request, stream, timeout)
        )
        return cast(Inspected, self._run(asked))

    def ask_stream(self, request: InspectRequest, *, timeout: float | None = None) -> Streamed:
        """Does what `inspect_stream` does, for a complete request."""
        return cast(Streamed, self._stream(request, timeout))

    def _stream(self, request: InspectRequest, timeout: float | None, **options: Any) -> Any:
        """Returns the reply stream, with options of its class."""
        check_text(request.model, "model")

        def send(seconds: float, in_parts: bool) -> Any:
            return self._messages(self._transport.inspect_stream(request, in_parts), seconds)

        return self._reply_stream(send, self._seconds(timeout), request, **options)

    def _channel_of(self, owner: Hashable) -> Any:
        """Returns the channel of ``owner``, an event loop or a process, which is made at its first call."""
        if self._is_closed:
            raise ValueError("the client is closed: make another one")
        if owner not in self._channels:
            self._channels[owner] = self._make_channel()
        return self._channels[owner]

    @abstractmethod
    def _run(self, steps: Steps[Any]) -> Any:
        """Drives a call to its end; returns its result, or an awaitable of it."""

    @abstractmethod
    def _send(self, call: Call[Any], timeout: float | None) -> Any:
        """Returns the serialised reply to ``call``, or an awaitable of it."""

    @abstractmethod
    def _messages(self, call: Call[bytes], timeout: float) -> Any:
        """Yields the messages of the reply to ``call``."""

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else _checked_timeout(timeout)

    def _call(self, call: Call[T], timeout: float | None) -> Steps[T]:
        return call.read((yield self._send(call, timeout)))

    def _inspect(self, request: InspectRequest, stream: bool | None, timeout: float | None) -> Steps[Inspection]:
        """Requests the reply in one message, or as a stream if the reply is large. Requests a stream too if the server
        reports that one message cannot hold the reply."""
        check_text(request.model, "model")
        deadline = time.monotonic() + self._seconds(timeout)
        if not ((yield from self._prefers_stream(request, timeout)) if stream is None else stream):
            call = self._transport.inspect(request)
            try:
                reply = yield self._send(call, timeout)
                result = call.read(reply)
                if not request.dry_run:
                    self._sizes.note(request, len(reply), result)
                return Inspection.of(result, request)
            except CutawayError as failure:
                if stream is not None or not exceeds_one_message(failure):
                    raise
        streamed = self._stream(request, max(deadline - time.monotonic(), 0.0), in_parts=False)
        inspection: Inspection = yield streamed.result()
        self._sizes.note(request, streamed.reply_bytes, inspection)
        return inspection

    def _inspect_showing(
        self, request: InspectRequest, progress: bool | OnProgress, timeout: float | None
    ) -> Steps[Inspection]:
        with bar() if progress is True else nullcontext(progress) as on_progress:
            streamed = self._stream(request, timeout, on_progress=on_progress)
            result: Inspection = yield streamed.result()
        self._sizes.note(request, streamed.reply_bytes, result)
        return result

    def _prefers_stream(self, request: InspectRequest, timeout: float | None) -> Steps[bool]:
        """Returns whether the reply should come in pieces, if the caller does not choose."""
        if not request.dry_run and self._sizes.needs_estimate(request):
            try:
                dry_run = yield from self._call(self._transport.inspect(replace(request, dry_run=True)), timeout)
            except CutawayError:
                return False  # the request itself then fails with the same error, or passes
            if dry_run.estimate is not None:
                self._sizes.note(request, dry_run.estimate.reply_bytes)
        return self._sizes.is_large(request)

    def _list_models(self, timeout: float | None) -> Steps[list[ModelName]]:
        models, token = yield from self._call(self._transport.list_models(""), timeout)
        while token:
            page, token = yield from self._call(self._transport.list_models(token), timeout)
            models += page
        return models

    def _error_of(self, failure: grpc.RpcError) -> CutawayError:
        """Returns the exception for a failed call; may connect to the server once more to find out what is wrong."""
        code, _ = failure.code().value
        details = failure.details() or ""
        closed_at_once = details.startswith("failed to connect") and "refused" not in details
        if self._trust.credentials is None and closed_at_once and speaks_tls(self._target):
            return error(Reason.SERVER_UNREACHABLE, "the server speaks TLS, and this client does not: set tls")
        trailers: Any = failure.trailing_metadata() or ()
        return with_address(self._transport.failure(code, details, trailers), self._target)


def _request(arguments: Mapping[str, Any]) -> InspectRequest:
    """Returns the request for all local variables of a verb, so that its signature is the only list of them."""
    return build_request(
        **{name: arguments[name] for name in arguments if name not in ("self", "stream", "progress", "timeout")}
    )


_LONGEST_S = 1e6
"""The longest timeout: Connect has ten digits for the milliseconds of a deadline, and gRPC takes no infinite one."""


def _checked_timeout(timeout: Any) -> float:
    """Returns a timeout as it is sent.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, unless it is a number of seconds from 0 on.
    """
    if isinstance(timeout, (int, float, np.integer, np.floating)) and timeout >= 0:  # not NaN
        return float(min(timeout, _LONGEST_S))
    raise error(Reason.INVALID_VALUE, f"{timeout!r:.200} is no number of seconds from 0 on", "timeout")


def _options(target: str, transport: Transport) -> list[tuple[str, Any]]:
    """Returns the options of a channel to ``target``."""
    options: list[tuple[str, Any]] = [*_OPTIONS]
    if target.startswith(("dns:", "ipv4:", "ipv6:")):
        options.append(("grpc.service_config", json.dumps(_SPREADING)))
    if isinstance(transport, GatewayTransport):
        options += _KEPT_ALIVE
    if is_loopback(target):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _transport_for(address: str) -> tuple[Transport, str]:
    """Returns the transport for ``address``, and the ``host:port`` to connect to."""
    check_text(address, "address")
    target = address.removeprefix(TORCHSERVE_SCHEME)
    check_target(target, "address")
    return GatewayTransport() if target == address else TorchServeTransport(), target
