"""A call to a worker, from the gateway's connection, TorchServe or a thread of this process, and its inputs."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from torch import Tensor

from cutaway.adapters import Adapter
from cutaway.contract.errors import CutawayError, Reason, at, error, release_frames
from cutaway.contract.requests import Attribution, ConceptExamples, InspectRequest, field_name
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.contract.wire import chunks
from cutaway.engine.methods.influence import method_of
from cutaway.engine.model.input_validation import (
    check_features,
    in_declared_types,
    in_own_type,
    is_in_own_type,
    named,
    validate_arguments,
    validate_inputs,
)
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, arguments_kind
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation, Examples, is_out_of_memory
from cutaway.engine.planning.plan import RequestPlan, without
from cutaway.engine.runtime.numerics import from_numpy
from cutaway.server.settings import Settings
from cutaway.server.worker.loading import decoded
from cutaway.v1 import worker_pb2

log = logging.getLogger(__name__)


def as_failure(failure: BaseException) -> worker_pb2.Failure:
    """Encodes an exception and releases its frames; logs an unexpected one with its traceback."""
    failed = _as_error(failure)
    release_frames(failure)
    message = failed.message.encode(errors="backslashreplace").decode()  # a model's own text may be no Unicode
    return worker_pb2.Failure(code=failed.code, reason=failed.reason, message=message, field=failed.field)


def with_failure(pieces: Iterator[chunks.Piece]) -> Iterator[chunks.Piece]:
    """Yields ``pieces``; an exception becomes the last piece."""
    try:
        yield from pieces
    except GeneratorExit:
        raise
    except BaseException as failure:
        yield chunks.worker_piece(worker_pb2.WorkerReply(failure=as_failure(failure)))


@contextmanager
def raising_errors() -> Iterator[None]:
    """Raises any exception of the block, a model's SystemExit too, as the `CutawayError` that a reply would carry."""
    try:
        yield
    except CutawayError:
        raise
    except BaseException as failure:
        raise _as_error(failure) from failure


def _as_error(failure: BaseException) -> CutawayError:
    if isinstance(failure, CutawayError):
        return failure
    if is_out_of_memory(failure):
        what = "the request needs more memory than is free; send fewer rows or request less"
        return error(Reason.OUT_OF_MEMORY, what)
    log.error("unexpected exception in a request", exc_info=failure)
    return error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"[:500])


def lacked_memory(outcome: object) -> bool:
    """Returns whether ``outcome`` is an exception that reports too little memory."""
    told = isinstance(outcome, CutawayError) and outcome.reason == Reason.OUT_OF_MEMORY
    return told or (isinstance(outcome, BaseException) and is_out_of_memory(outcome))


# Spans of a model's own code become children of the call's span. Workers export no spans of stages: the gateway makes
# these from the durations in the reply.
_UNSAMPLED = "-00"


def attached(spans: Iterable[str]) -> AbstractContextManager[None]:
    """Returns a context in which new spans are children of one of ``spans``.

    Those are in W3C Trace Context format, or empty. Calls that share a pass share its spans, as children of the first
    call that is sampled.
    """
    known = [span for span in spans if span]
    if not known:
        return nullcontext()
    return _attach()(min(known, key=lambda span: span.endswith(_UNSAMPLED)))


@cache
def _attach() -> Callable[[str], AbstractContextManager[None]]:
    """Returns OpenTelemetry's context if it is installed; without it there are no spans."""
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return lambda _: nullcontext()
    w3c = TraceContextTextMapPropagator()

    @contextmanager
    def attach(traceparent: str) -> Iterator[None]:
        token = context.attach(w3c.extract({"traceparent": traceparent}))
        try:
            yield
        finally:
            context.detach(token)

    return attach


# Streamed replies whose model has run, and whose pieces wait for a connection that fetches them.

PATIENCE_S = 10.0
"""Seconds after which unfetched pieces are dropped, and that a reader may take without reading."""


class PieceQueue:
    """The pieces of one reply, which the model's thread puts part by part, and another one takes."""

    def __init__(self) -> None:
        self._parts: SimpleQueue[Iterator[chunks.Piece] | None] = SimpleQueue()
        self._arrived: Callable[[], object] = lambda: None
        self._is_taken = False
        self._first_sent = threading.Event()

    def put(self, part: Iterator[chunks.Piece] | None) -> None:
        """Adds the pieces of the next part; None after the last one."""
        self._parts.put(part)
        self._arrived()

    def __iter__(self) -> Iterator[chunks.Piece]:
        """Yields all pieces; waits for those that do not exist yet."""
        while (part := self._parts.get()) is not None:
            yield from part
            self._first_sent.set()

    def wait_until_sent(self, seconds: float) -> None:
        """Waits until the first part was sent, for so long at most."""
        self._first_sent.wait(seconds)

    def notify(self, arrived: Callable[[], object]) -> None:
        """Calls ``arrived`` whenever a part was put, from now on."""
        self._arrived = arrived

    def take(self) -> Iterator[chunks.Piece] | None:
        """Returns the pieces of the next part, those before it were sent; None after the last one.

        Raises:
            Empty: there is none yet.
        """
        if self._is_taken:
            self._first_sent.set()
        part = self._parts.get_nowait()
        self._is_taken = True
        return part


class WaitingPieces:
    """The pieces of streamed replies, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[float, PieceQueue]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, pieces: PieceQueue) -> int:
        """Keeps ``pieces`` for `PATIENCE_S`, and returns their number."""
        self.drop_late()
        number = next(self._numbers)
        self._waiting[number] = (time.monotonic(), pieces)
        return number

    def take(self, number: int) -> PieceQueue | None:
        """Returns the pieces with a number, once; None if there are none."""
        _, pieces = self._waiting.pop(number, (0.0, None))
        return pieces

    def drop_late(self) -> None:
        """Drops the pieces that nobody has fetched in time; safe in any thread."""
        oldest = time.monotonic() - PATIENCE_S
        # A copy, made at once: making a list of items may run the garbage collector, and so another thread.
        for number, (since, _) in self._waiting.copy().items():
            if since < oldest:
                self._waiting.pop(number, None)


KINDS = ("inspect", "describe", "stream")
"""The kinds of calls: an InspectRequest, a GetModelRequest, an InspectStreamRequest."""


class Call(NamedTuple):
    """A call to a worker.

    Attributes:
        kind: one of `KINDS`.
        payload: the serialised request.
        cancellation: tells when the caller stops waiting.
        traceparent: its span in W3C Trace Context format; empty for none.
        buffered: whether its transport may buffer a whole streamed reply, which is then limited as one message is.
        begun: takes the reply of a call whose streamed reply begins while its model runs; None if nobody does.
        caller: whose it is.
    """

    kind: str
    payload: bytes
    cancellation: Cancellation = NEVER_CANCELLED
    traceparent: str = ""
    buffered: bool = False
    begun: Callable[[bytes], object] | None = None
    caller: str = ""

    @classmethod
    def of_message(
        cls, message: worker_pb2.WorkerCall, hung_up: Callable[[], bool], begun: Callable[[bytes], object]
    ) -> Call:
        """Returns the call in a message of the gateway; ``hung_up`` returns whether it was cancelled."""
        kind = message.WhichOneof("request") or ""
        cancellation = Cancellation(message.deadline or None, hung_up)
        payload = getattr(message, kind, b"")
        return cls(kind, payload, cancellation, message.traceparent, begun=begun, caller=message.caller)

    @classmethod
    def of_parts(cls, parts: Mapping[str, bytes]) -> Call:
        """Returns the call in the parts that TorchServe passes: one part, named after its kind."""
        kinds = [kind for kind in KINDS if kind in parts]
        return cls(kinds[0], parts[kinds[0]]) if len(kinds) == 1 else cls("", ", ".join(sorted(parts)).encode())

    def check(self) -> None:
        """Raises ``MALFORMED_REQUEST`` for a call of no kind."""
        if self.kind not in KINDS:
            got = self.payload.decode("utf-8", "replace") or "none"
            what = f"a call has exactly one of the parts {', '.join(KINDS)}, got {got:.200}"
            raise error(Reason.MALFORMED_REQUEST, what)


# Limits of a request: deadline, memory, size of the reply, and the counts that the operator sets.


T = TypeVar("T")


def check_deadline(deadline: float | None, when: str) -> None:
    """Raises ``DEADLINE_EXCEEDED``, with the phrase ``when``, if ``deadline`` has passed."""
    if deadline is not None and deadline < time.time():
        raise error(Reason.DEADLINE_EXCEEDED, f"the deadline passed {when}")


def until_deadline(pieces: Iterator[T], deadline: float | None) -> Iterator[T]:
    """Yields ``pieces``; raises ``DEADLINE_EXCEEDED`` before the first one past ``deadline``."""
    for piece in pieces:
        check_deadline(deadline, "before the whole reply was sent")
        yield piece


def check_reply_size(size: int, requested: int, possible: int) -> None:
    """Raises ``REPLY_TOO_LARGE`` for a reply that is larger than the caller or the transport allows.

    Args:
        size: bytes of the reply.
        requested: the caller's limit; 0 for none.
        possible: the transport's limit.
    """
    limit = min(requested or possible, possible)
    if size > limit:
        what = f"the reply would have {size} bytes, {limit} are allowed; capture fewer modules or send fewer rows"
        field = "options.max_reply_bytes" if requested and requested <= possible else ""
        raise error(Reason.REPLY_TOO_LARGE, what, field)


def check_memory(request: InspectRequest, least: int, allowed: int) -> None:
    """Raises ``OUT_OF_MEMORY`` if the activations of a request take at least ``least`` bytes, and fewer are allowed."""
    if least > allowed:
        what = f"the activations of its rows take at least {least} bytes, {allowed} are allowed: send fewer rows"
        raise error(Reason.OUT_OF_MEMORY, what, "raw" if request.raw else "tensors.by_name")


def check_counts(request: InspectRequest, failed: int, settings: Settings) -> None:
    """Raises ``LIMIT_EXCEEDED``, with the field, if a request has more rows, captures or attributions than allowed.

    ``failed`` is the number of further attributions, which could not be decoded.
    """
    for field, what, count, limit in _counts(request, failed, settings):
        _check_count(field, what, count, limit)


def check_steps(settings: Settings, attribution: Attribution) -> None:
    """Raises ``LIMIT_EXCEEDED``, with the field, if the attribution has more steps than the settings allow."""
    for steps in ("n_steps", "n_samples"):
        field = f"{field_name(type(attribution))}.{steps}"
        _check_count(field, "steps", getattr(attribution, steps, 0), settings.max_steps)


def _check_count(field: str, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise error(Reason.LIMIT_EXCEEDED, f"the request has {count} {what}, {limit} are allowed", field)


def _counts(request: InspectRequest, failed: int, settings: Settings) -> Iterator[tuple[str, str, int, int]]:
    """Yields field, noun, count and limit."""
    for name, array in request.tensors.items():
        yield f"tensors.by_name.{name}", "rows", array.shape[0] if array.ndim else 1, settings.max_rows
    yield "raw", "examples", len(request.raw), settings.max_rows
    if request.concepts is not None:
        sets = {f"concepts.{name}": each for name, each in request.concepts.concepts.items()}
        sets |= {f"random[{number}]": each for number, each in enumerate(request.concepts.random)}
        for name, each in sets.items():
            yield f"concepts.{name}", "examples", _rows(each), settings.max_rows
        yield "concepts.random", "random sets", len(request.concepts.random), settings.max_attributions
    if request.influence is not None:
        yield "influence.training", "training rows", _rows(request.influence.training), settings.max_rows
    yield "captures", "captures", len(request.captures), settings.max_captures
    yield "attributions", "attributions", len(request.attributions) + failed, settings.max_attributions
    yield "attacks", "attacks", len(request.attacks), settings.max_attributions
    for number, attack in enumerate(request.attacks):
        yield f"attacks[{number}].pgd.n_steps", "steps", getattr(attack, "n_steps", 0), settings.max_steps
    if request.counterfactual is not None:
        yield "counterfactual.max_changes", "changes", request.counterfactual.max_changes, settings.max_steps
    if request.generate is not None:
        yield "generate.max_new_tokens", "steps", request.generate.max_new_tokens, settings.max_steps


def _rows(examples: ConceptExamples) -> int:
    return max([len(examples.raw), *(len(array) for array in examples.tensors.values() if array.ndim)])


def within_passes(plan: RequestPlan, costs: Iterable[tuple[str, int]], limit: int) -> tuple[RequestPlan, int]:
    """Returns the plan, and the passes of its attributions, without those that exceed the limit beside those before.

    Args:
        plan: the plan.
        costs: field and number of passes of one row, by attribution.
        limit: `Settings.max_passes`.

    Raises:
        ResourceExhausted: ``LIMIT_EXCEEDED``, with the field, unless the request takes such errors in their places.
    """
    total, failures = 0, {}
    for position, (field, passes) in enumerate(costs):
        if total + passes <= limit:
            total += passes
            continue
        advice = "request fewer rows, steps, samples or features, or no check"
        what = f"attributions would take up to {total + passes} passes of one row, {limit} are allowed: {advice}"
        failures[position] = error(Reason.LIMIT_EXCEEDED, what, field)
        if position >= len(plan.attributions):  # a sweep, an attack or concepts, which have no place for an error
            raise failures[position]
    return without(plan, failures), total


# The inputs of calls: decoded, named, checked, and where the model is.

_MOST_KINDS = 1024
"""The most kinds of valid inputs (names, types and shapes) that a worker remembers."""


class RequestInputs:
    """Reads the inputs of requests; knows the kinds of tensors and arguments that were valid before.

    Args:
        model: the model.
        adapter: decodes raw inputs.
    """

    def __init__(self, model: InspectedModel, adapter: Adapter) -> None:
        self._model, self._adapter = model, adapter
        self._valid: dict[Hashable, tuple[str, ...]] = {}
        self._as_sent: dict[Hashable, tuple[str, ...]] = {}

    def of(self, request: InspectRequest, cancellation: Cancellation) -> Inputs:
        """Returns the inputs of ``request`` in the model's order.

        Raises:
            InvalidArgument: they are not what the model takes; with the field at fault.
        """
        sent_kind = _kind(request.tensors), arguments_kind(request.arguments)
        names = None if request.raw or request.feature_names else self._as_sent.get(sent_kind)
        if names is not None:
            return {name: from_numpy(request.tensors[name]) for name in names}
        specs = self._model.inputs
        with at("raw" if request.raw else "tensors.by_name"):
            if request.raw:
                tensors: Mapping[str, Tensor] = decoded(self._adapter, request.raw, cancellation)
            else:
                sent = named(specs, {name: from_numpy(array) for name, array in request.tensors.items()})
                tensors = in_declared_types(specs, sent)
        if request.feature_names:
            with at("tensors.feature_names"):
                check_features(specs, tensors, named(specs, request.feature_names))
        kind = _kind(tensors), arguments_kind(request.arguments)
        order = self._valid.get(kind)
        if order is None:
            if len(self._valid) >= _MOST_KINDS:
                self._valid.clear()
                self._as_sent.clear()
            order = self._valid[kind] = self._validated_names(request, tensors)
        inputs = {name: tensors[name].to(self._model.device) for name in order}
        if request.raw:
            return inputs
        own = in_own_type(self._model, inputs, cancellation, request.arguments)
        is_as_sent = all(name in request.tensors and own[name] is sent[name] for name in order)
        if is_as_sent and is_in_own_type(self._model, own):
            self._as_sent[sent_kind] = order
        return own

    def read(self, request: InspectRequest, cancellation: Cancellation) -> InspectRequest:
        """Returns ``request`` with the examples of its concepts, and its training rows, read and decoded.

        Raises:
            InvalidArgument: no data set has the name, or the adapter cannot decode an example; with the field at fault.
        """

        def tensors_of(examples: ConceptExamples, field: str) -> ConceptExamples:
            with at(field):
                if examples.data_set:
                    return ConceptExamples(self._data_set(examples, "data_set").read(cancellation))
                if not examples.raw:
                    return examples
                if examples.tensors:
                    raise error(Reason.INVALID_VALUE, "send tensors or raw examples, not both", "raw")
                return ConceptExamples(decoded(self._adapter, examples.raw, cancellation))

        if (tested := request.concepts) is not None:
            concepts = {name: tensors_of(each, f"concepts.concepts.{name}") for name, each in tested.concepts.items()}
            sets = tuple(tensors_of(each, f"concepts.random[{number}]") for number, each in enumerate(tested.random))
            request = changed(request, concepts=changed(tested, concepts=concepts, random=sets))
        if (sought := request.influence) is not None:
            training, labels = tensors_of(sought.training, "influence.training"), sought.labels
            if sought.training.data_set and not method_of(sought).is_similarity:
                labels = labels or self._data_set(sought.training, "influence.training.data_set").labels
            request = changed(request, influence=changed(sought, training=training, labels=labels))
        return request

    def _data_set(self, examples: ConceptExamples, field: str) -> Examples:
        """Returns the data set that ``examples`` name.

        Raises:
            InvalidArgument: ``DATA_SET_NOT_FOUND``, with those that there are; or there are examples besides.
        """
        known, name = self._model.kept.data_sets, examples.data_set
        if examples.tensors or examples.raw:
            raise error(Reason.INVALID_VALUE, "send examples or name a data set, not both", field)
        if name not in known:
            there = (
                f"there are {', '.join(known)}" if known else "the model has none; cutaway package --data-set adds one"
            )
            raise error(Reason.DATA_SET_NOT_FOUND, f"no data set is named {name!r}; {there}", field)
        return known[name]

    def _validated_names(self, request: InspectRequest, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        with at("arguments"):
            any_name = self._model.takes_any_name
            specs = validate_arguments(self._model.inputs, tensors, request.arguments, any_name=any_name)
        with at("raw" if request.raw else "tensors.by_name"):
            return tuple(validate_inputs(specs, tensors, any_name=any_name))


def _kind(tensors: Mapping[str, Tensor] | Mapping[str, Array]) -> Hashable:
    return (*((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()),)
