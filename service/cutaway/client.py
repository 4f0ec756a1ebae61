"""The Python client: numpy in, numpy out, no torch and no Captum.

import cutaway as ca

with ca.Client("127.0.0.1:50051") as client:
    result = client.inspect("digits", {"image": image}, captures=[ca.Capture("conv*")])
result.captures["conv1"].output        # [batch, channels, height, width]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
import numpy as np

from cutaway.errors import Reason, error
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
from cutaway.routes import TORCHSERVE_SCHEME, Call, FrontDoor, Routes, TorchServeDirect
from cutaway.tensors import ArrayLike, as_array

T = TypeVar("T")

Inputs: TypeAlias = Mapping[str, ArrayLike] | Raw | Sequence[Raw]
TargetLike: TypeAlias = int | Sequence[int] | Target | None
CheckLike: TypeAlias = str | CheckMode | CheckRequest

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


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


def _routes(address: str) -> tuple[Routes, str]:
    if not address.removeprefix(TORCHSERVE_SCHEME):
        raise error(Reason.INVALID_VALUE, "the address is HOST:PORT, or torchserve://HOST:PORT", "address")
    if address.startswith(TORCHSERVE_SCHEME):
        return TorchServeDirect(), address.removeprefix(TORCHSERVE_SCHEME)
    return FrontDoor(), address


@contextmanager
def _translated(routes: Routes) -> Iterator[None]:
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
    """

    def __init__(self, address: str, *, timeout: float = 60.0) -> None:
        self._routes, where = _routes(address)
        self._timeout = timeout
        self._channel = grpc.insecure_channel(where, options=_OPTIONS)

    def inspect(self, model: str, inputs: Inputs, *, timeout: float | None = None, **asked: Any) -> InspectResult:
        """Ask one question; takes what `question` takes.

        Raises:
            CutawayError: with a stable reason, and the field at fault.
        """
        return self.ask(question(model, inputs, **asked), timeout=timeout)

    def ask(self, request: InspectRequest, *, timeout: float | None = None) -> InspectResult:
        """Ask one question that is made already."""
        return self._call(self._routes.inspect(request), timeout)

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

    def _call(self, call: Call[T], timeout: float | None) -> T:
        with _translated(self._routes):
            send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
            reply = send(call.payload, timeout=self._timeout if timeout is None else timeout)
        return call.read(reply)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
    """`Client`, awaited.

    Args:
        address: ``host:port`` of a front door, or ``torchserve://host:port`` of TorchServe's own gRPC port.
        timeout: seconds a call may take, where the call itself does not say.
    """

    def __init__(self, address: str, *, timeout: float = 60.0) -> None:
        self._routes, where = _routes(address)
        self._timeout = timeout
        self._channel = grpc.aio.insecure_channel(where, options=_OPTIONS)

    async def inspect(self, model: str, inputs: Inputs, *, timeout: float | None = None, **asked: Any) -> InspectResult:
        """Ask one question; takes what `question` takes.

        Raises:
            CutawayError: with a stable reason, and the field at fault.
        """
        return await self.ask(question(model, inputs, **asked), timeout=timeout)

    async def ask(self, request: InspectRequest, *, timeout: float | None = None) -> InspectResult:
        """Ask one question that is made already."""
        return await self._call(self._routes.inspect(request), timeout)

    async def get_model(self, model: str, *, operators: bool = False, timeout: float | None = None) -> ModelDetail:
        """One model: what goes in, what comes out, and its module tree; on request also the operators inside."""
        return await self._call(self._routes.get_model(model, operators), timeout)

    async def list_models(self, *, timeout: float | None = None) -> list[ModelName]:
        """Every model served, by name and version."""
        models, token = await self._call(self._routes.list_models(""), timeout)
        while token:
            more, token = await self._call(self._routes.list_models(token), timeout)
            models += more
        return models

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()

    async def _call(self, call: Call[T], timeout: float | None) -> T:
        with _translated(self._routes):
            send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(call.path)
            reply = await send(call.payload, timeout=self._timeout if timeout is None else timeout)
        return call.read(reply)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
