"""The Python client: numpy in, numpy out, no torch and no Captum.

import cutaway as ca

with ca.Client("127.0.0.1:50051") as client:
    result = client.inspect("digits", {"image": image}, captures=[ca.Capture("conv*")])
result.captures["conv1"].output        # [batch, channels, height, width]
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import grpc
import numpy as np

from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import (
    Attribution,
    Capture,
    CheckMode,
    CheckRequest,
    ClassIndex,
    Edit,
    ExplainIf,
    InspectRequest,
    PredictedClass,
    Raw,
    Target,
)
from cutaway.results import InspectResult, ModelDetail, ModelName
from cutaway.routes import TORCHSERVE_SCHEME, Call, FrontDoor, Routes, StreamCall, TorchServeDirect
from cutaway.sizes import Sizes, too_large_for_one
from cutaway.streams import ReplyStream
from cutaway.tensors import ArrayLike, as_array
from cutaway.trust import Tls, trust

T = TypeVar("T")

Inputs: TypeAlias = Mapping[str, ArrayLike] | Raw | Sequence[Raw]
TargetLike: TypeAlias = int | Sequence[int] | Target | None
CheckLike: TypeAlias = str | CheckMode | CheckRequest

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def question(
    model: str,
    inputs: Inputs,
    *,
    target: TargetLike = None,
    captures: Sequence[Capture | str] | str = (),
    input_gradients: bool | Sequence[str] | str = False,
    attributions: Sequence[Attribution] = (),
    explain_if: ExplainIf | None = None,
    edits: Sequence[Edit] = (),
    compare: bool = False,
    check: CheckLike = CheckMode.SAME_PASS,
    predictions: bool = True,
    max_reply_bytes: int = 0,
    seed: int | None = None,
    reply_data_type: str = "",
    compression: str = "",
    dry_run: bool = False,
) -> InspectRequest:
    """One question, from the forms that people like to write.

    Args:
        model: ``digits``, or ``digits/versions/1.0``.
        inputs: arrays by forward-argument name, batch first; or one `Raw` or several, for the model to decode.
        target: None for the predicted class, a class index for all examples, one an example, or a `Target`.
        captures: what to bring back from inside; a bare name or glob brings back outputs.
        input_gradients: True for every floating input, or names.
        attributions: explanations.
        explain_if: explain only the examples whose prediction calls for it; None explains all.
        edits: changes to what flows through the model, in the order applied.
        compare: also bring back what the unedited model returns.
        check: ``off``, ``same_pass`` or ``independent``, or a `CheckRequest` with a tolerance.
        predictions: False leaves the predictions out; where nothing but values inside the model is asked for, and each
            capture names its ``call``, forward stops behind the last of them.
        max_reply_bytes: the largest reply to accept; 0 is the server's limit.
        seed: what methods that draw random numbers draw them from, 0 to 2**63 - 1; None draws one, which the
            provenance states.
        reply_data_type: ``float16``, ``bfloat16``, ``float32`` or ``float64``: what floating tensors of the reply are
            sent as, but for captures with a ``data_type`` of their own; ``""`` is as computed.
        compression: ``zstd`` packs the tensors of the reply, which needs the extra ``cutaway[zstd]``; ``""`` does not.
        dry_run: True brings back the ``estimate`` of the reply, its size and shapes, and nothing else; costs one
            forward pass.
    """
    return InspectRequest(
        model=model,
        **_inputs(inputs),
        target=_target(target),
        captures=tuple(Capture(each) if isinstance(each, str) else each for each in _several(captures)),
        input_gradients=_gradients(input_gradients),
        edits=tuple(edits),
        compare=compare,
        attributions=tuple(attributions),
        explain_if=explain_if,
        check=_check(check),
        omit_predictions=not predictions,
        max_reply_bytes=max_reply_bytes,
        seed=seed,
        reply_data_type=reply_data_type,
        compression=compression,
        dry_run=dry_run,
    )


def _inputs(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return {"tensors": {name: as_array(array) for name, array in inputs.items()}}
    raw = (inputs,) if isinstance(inputs, Raw) else tuple(inputs)
    if not all(isinstance(each, Raw) for each in raw):
        raise error(Reason.INVALID_VALUE, "inputs are arrays by name, one Raw, or several", "inputs")
    return {"raw": raw}


def _several(given: Sequence[T] | str) -> Sequence[T | str]:
    return (given,) if isinstance(given, str) else given


def _check(check: CheckLike) -> CheckRequest:
    if isinstance(check, CheckRequest):
        return check
    if check not in list(CheckMode):
        raise error(Reason.INVALID_VALUE, f"{check!r} is none of {', '.join(CheckMode)}", "check")
    return CheckRequest(CheckMode(check))


def _target(target: TargetLike) -> Target:
    if target is None:
        return PredictedClass()
    if isinstance(target, Target):
        return target
    indices = (target,) if isinstance(target, (int, np.integer)) else target
    if not all(isinstance(index, (int, np.integer)) for index in indices):
        raise error(Reason.INVALID_VALUE, f"{target!r} is no class index, nor several, nor a Target", "target")
    return ClassIndex(tuple(int(index) for index in indices))


def _gradients(wanted: bool | Sequence[str] | str) -> tuple[str, ...] | None:
    if isinstance(wanted, bool):
        return () if wanted else None
    return tuple(_several(wanted))


def routes_of(address: str) -> tuple[Routes, str]:
    """The calls to make of whoever listens at ``address``, and where that is."""
    if not address.removeprefix(TORCHSERVE_SCHEME):
        raise error(Reason.INVALID_VALUE, "the address is HOST:PORT, or torchserve://HOST:PORT", "address")
    if address.startswith(TORCHSERVE_SCHEME):
        return TorchServeDirect(), address.removeprefix(TORCHSERVE_SCHEME)
    return FrontDoor(), address


@contextmanager
def translated(routes: Routes) -> Iterator[None]:
    """Every failed call that leaves the block becomes a `CutawayError`."""
    try:
        yield
    except grpc.RpcError as failure:
        code, _ = failure.code().value
        trailers: Any = failure.trailing_metadata() or ()
        raise routes.failure(code, failure.details() or "", trailers) from None


class Client:
    """A connection to a server; it may be shared by threads.

    Args:
        address: ``host:port`` of a front door, or ``torchserve://host:port`` of TorchServe's own gRPC port.
        timeout: seconds a call may take, where the call itself does not say.
        token: says who calls, to a server that wants to know; it goes to another machine inside TLS only. That of a
            TorchServe that ``cutaway serve`` started is known to it alone.
        tls: True for an encrypted connection to a server whom the system trusts, or a `Tls` that says whom to trust.
    """

    def __init__(
        self, address: str, *, timeout: float = 60.0, token: str | None = None, tls: bool | Tls = False
    ) -> None:
        self._routes, where = routes_of(address)
        self._trust = trust(where, token, tls)
        self._timeout = timeout
        self._sizes = Sizes()
        options = (*OPTIONS, *self._trust.options)
        self._channel = (
            grpc.secure_channel(where, self._trust.credentials, options)
            if self._trust.credentials
            else grpc.insecure_channel(where, options)
        )

    def inspect(
        self,
        model: str,
        inputs: Inputs,
        *,
        stream: bool | None = None,
        timeout: float | None = None,
        **asked: Any,
    ) -> InspectResult:
        """Ask one question; takes what `question` takes.

        Args:
            model: as in `question`.
            inputs: as in `question`.
            stream: True has the answer sent in pieces, which large ones need; False in one message; None in whichever
                way is the better one. The answer is the same.
            timeout: seconds the call may take.
            asked: as in `question`.

        Raises:
            CutawayError: with a stable reason, and the field at fault.
        """
        return self.ask(question(model, inputs, **asked), stream=stream, timeout=timeout)

    def ask(
        self, request: InspectRequest, *, stream: bool | None = None, timeout: float | None = None
    ) -> InspectResult:
        """Ask one question that is made already."""
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        if not (self._streams(request, timeout) if stream is None else stream):
            try:
                return self._asked(request, timeout)
            except CutawayError as failure:
                if stream is not None or not too_large_for_one(failure):
                    raise
        reply = self.ask_stream(request, timeout=max(until - time.monotonic(), 0.0))
        result = reply.result()
        self._sizes.note(request, reply.reply_bytes)
        return result

    def inspect_stream(self, model: str, inputs: Inputs, *, timeout: float | None = None, **asked: Any) -> ReplyStream:
        """Ask one question whose answer comes in pieces, tensor by tensor, as it comes; takes what `question` takes.

        The question is sent when the first tensor is asked for, and that is where an error is raised.
        """
        return self.ask_stream(question(model, inputs, **asked), timeout=timeout)

    def ask_stream(self, request: InspectRequest, *, timeout: float | None = None) -> ReplyStream:
        """Ask one question that is made already, in the same way."""
        call = self._routes.inspect_stream(request)
        return ReplyStream(partial(self._messages, call), self._timeout if timeout is None else timeout)

    def _streams(self, request: InspectRequest, timeout: float | None) -> bool:
        """Whether the reply should come in pieces, where the caller does not say."""
        if not request.dry_run and self._sizes.unsure(request):
            try:
                estimate = (self._call(self._routes.inspect(replace(request, dry_run=True)), timeout)).estimate
            except CutawayError:
                return False  # what is wrong, if anything is, the question itself is told
            if estimate is not None:
                self._sizes.note(request, estimate.reply_bytes)
        return self._sizes.large(request)

    def get_model(self, model: str, *, operators: bool = False, timeout: float | None = None) -> ModelDetail:
        """One model: what goes in, what comes out, and its module tree; on request also the operators inside."""
        return self._call(self._routes.get_model(model, operators), timeout)

    def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Every model served, by name and version."""
        models, token = self._call(self._routes.list_models(""), timeout)
        while token:
            more, token = self._call(self._routes.list_models(token), timeout)
            models += more
        return models

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _asked(self, request: InspectRequest, timeout: float | None) -> InspectResult:
        call = self._routes.inspect(request)
        reply = self._reply(call, timeout)
        if not request.dry_run:
            self._sizes.note(request, len(reply))
        return call.read(reply)

    def _call(self, call: Call[T], timeout: float | None) -> T:
        return call.read(self._reply(call, timeout))

    def _reply(self, call: Call[Any], timeout: float | None) -> bytes:
        with translated(self._routes):
            send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
            wait = self._timeout if timeout is None else timeout
            return send(call.payload, timeout=wait, metadata=self._trust.metadata)

    def _messages(self, call: StreamCall, timeout: float) -> Generator[bytes, None, None]:
        with translated(self._routes):
            send: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(call.path)
            messages = send(call.payload, timeout=timeout, metadata=self._trust.metadata)
            try:
                yield from messages
            finally:
                messages.cancel()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
