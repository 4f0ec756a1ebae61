"""Decodes requests, runs the model and encodes replies, for TorchServe's handler and the in-process backend.

A worker holds one copy of one model. Hooks are state of that copy, so one batch runs at a time; long requests let
others run between their passes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn

from cutaway.adapters import Adapter, TensorAdapter, example_of
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail, ModelName, Provenance, Timings
from cutaway.contract.values import __version__, changed
from cutaway.contract.wire import chunks
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.chunks import apply_reply_options
from cutaway.contract.wire.worker_reply import Parts, Reply
from cutaway.engine.batching import Group, Others, Outcome, Tell, alike, answer_batch, inspect_batch
from cutaway.engine.checks.row_independence import rows_independent
from cutaway.engine.cost.estimate import kind_of_request, least_bytes
from cutaway.engine.cost.pass_count import costs, expected_passes
from cutaway.engine.execution.collect import provenance
from cutaway.engine.execution.description import describe, trace_data_flow
from cutaway.engine.execution.repeated import find_short_passes, in_few_threads, kept_plan, planned_before
from cutaway.engine.hooks.observe import CancelledPasses
from cutaway.engine.model.input_validation import naming_undeclared_type
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation, timed
from cutaway.engine.planning.plan import NONE_FAILED, Failed, RequestPlan, plan_request
from cutaway.engine.runtime.numerics import to_numpy
from cutaway.server.archive import reader
from cutaway.server.memory import RequestMemory
from cutaway.server.settings import Settings
from cutaway.server.worker.call import (
    Call,
    RequestInputs,
    WaitingPieces,
    as_failure,
    attached,
    check_counts,
    check_deadline,
    check_memory,
    check_reply_size,
    check_steps,
    lacked_memory,
    raising_errors,
    within_passes,
)
from cutaway.server.worker.loading import is_lost, load, load_archived, outlines, what_fits
from cutaway.server.worker.model_threads import Job, ModelThreads
from cutaway.server.worker.proofs import IdleProofs, proof_file
from cutaway.server.worker.replies import StreamedReply, with_names
from cutaway.server.worker.writers import Writer, Writers
from cutaway.v1 import inspection_service_pb2, worker_pb2

log = logging.getLogger(__name__)

_MOST_PASSES = 512
"""The most passes of a row for the attributions of a request that is answered together with others. One of more has a
turn of its own, and shares a turn with those only that ask the same."""

_OVERHEAD = 2
"""The most memory that a request takes, by experience, for each byte that it is known to take."""

T = TypeVar("T")

Later: TypeAlias = Callable[[Callable[[], None], Sequence[int]], None]
"""A function that takes one that runs calls, and the positions of these calls in their turn."""


class _Decoded(NamedTuple):
    """A decoded request, the passes of each row, the call that it came with, the duration of its decoding, and its
    reply if that is streamed."""

    plan: RequestPlan
    passes: int
    call: Call
    decode_ms: float
    streamed: StreamedReply | None = None


class Worker:
    """A worker, which runs the requests to one model.

    Args:
        model: the model.
        adapter: decodes raw inputs for it.
        name: the model and version in replies.
        settings: the largest reply, and limits of a request.

    Attributes:
        threads: run the model.
        memory: what requests may take on a CPU; None for no limit.
        pieces: streamed replies that nobody has fetched yet.
        idle: tests of the model for idle time; None for a model that is not in an archive, or has one caller.
    """

    def __init__(self, model: InspectedModel, adapter: Adapter, name: ModelName, settings: Settings) -> None:
        self._model = model
        self._cancelled_passes = CancelledPasses(model)
        self._adapter = adapter
        self._settings = settings
        self.name = name
        model.turns = self.threads = ModelThreads(name.model)
        own = settings.request_memory_bytes if model.device.type == "cpu" else None
        self.memory = None if own is None else RequestMemory(own)
        self.pieces = WaitingPieces()
        self.idle: IdleProofs | None = None
        self._writers = Writers(self.threads, self._fits_beside, self._write)
        self._ran_out = False
        self._passed_example = False
        self._descriptions: dict[tuple[bool, ...], bytes] = {}
        self._inputs = RequestInputs(model, adapter)
        self._kinds: dict[str, Callable[[Call], _Decoded | Reply]] = {
            "inspect": self._inspect,
            "describe": self._describe,
            "stream": self._stream,
        }

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self._model.device

    @property
    def late_s(self) -> float:
        """The seconds since all its calls should have been done; safe to read from any thread."""
        until = self.threads.busy_until
        return max(0.0, time.time() - until) if until else 0.0

    @classmethod
    def load(
        cls, model_dir: Path, *, device: str, batches_calls: bool = True, proofs_dir: Path | None = None
    ) -> Worker:
        """Loads the model of an unpacked archive; with ``batches_calls``, tests whether calls may share a batch.

        ``proofs_dir``: where tests of the model are kept; by default as the settings say.

        Raises:
            InvalidArgument: ``ARCHIVE_CORRUPT`` or ``ADAPTER_INVALID``.
            FailedPrecondition: ``WEIGHTS_MISSING``; ``MODEL_COMPILED`` and others, if hooks do not reach the model.
        """
        manifest = reader.unpacked(model_dir)
        adapter, model = load_archived(manifest, model_dir, device)
        worker = cls(model, adapter, ModelName(manifest.model, manifest.version), Settings.load())
        if batches_calls:
            file = proof_file(proofs_dir or worker._settings.proofs_dir, model, manifest, model_dir)
            if file is not None:
                file.add_to(model.proofs)
            worker._check_row_independence()
            most_s = worker._settings.idle_tests_s
            worker.idle = IdleProofs(worker, model, worker._example, worker._cancelled_passes, file, most_s)
        return worker

    @classmethod
    def of(cls, model: nn.Module | Adapter, name: str, settings: Settings | None = None, device: str = "") -> Worker:
        """Returns a worker for a model in memory, as version 1.0, where it is; by default with the environment's
        settings."""
        adapter = model if isinstance(model, Adapter) else TensorAdapter(model)
        return cls(load(adapter, device), adapter, ModelName(name, "1.0"), settings or Settings.load())

    def _check_row_independence(self) -> None:
        """Tests before the first request whether calls may share a batch."""
        try:
            example = self._example()
            with self._model.session():
                independent = example is None or rows_independent(self._model, example, ())
                self._passed_example = example is not None
                if not independent:
                    log.warning("%s: rows are not proven to be independent; calls run one by one", self.name.model)
        except Exception as failure:  # in the adapter's example: a request for it gets the same error
            log.warning("%s: its example cannot be run: %s", self.name.model, failure)

    def is_sound(self, *, ran_out: bool = False) -> bool:
        """Returns False if the GPU is lost, or if the model no longer passes its example after a lack of memory.

        The example runs only if memory has run out since the last call of this function, or with ``ran_out``. A lack of
        memory may leave libraries broken.
        """
        ran_out, self._ran_out = ran_out or self._ran_out, False
        try:
            if ran_out and self._passed_example:
                self.describe()
        except Exception as failure:
            log.warning("%s no longer passes its example: %s", self.name.model, failure)
            return False
        return not is_lost(self.device)

    def set_alone(self) -> None:
        """Notes that this process runs no other model: see `find_short_passes`."""
        find_short_passes(self._model, self._example)

    def begin_idle_tests(self) -> None:
        """Runs tests of the model from now on, whenever nobody calls it."""
        if self.idle is not None:
            self.threads.fill_idle_time(self.idle.run, self.idle.give_way)

    def fits(self) -> str:
        """Returns what the weights take, and how large a request memory allows, by an estimate from the example."""
        return what_fits(self._model, self._example, self.memory)

    def _example(self) -> Inputs | None:
        return example_of(self._adapter, self._model.device)

    def shares_with(self, other: Worker) -> bool:
        """Returns whether the two models have a module in common; hooks of one would then run in the other."""
        return not set(self._model.module.modules()).isdisjoint(other._model.module.modules())

    def inspect(self, request: InspectRequest) -> InspectResult:
        """Runs a request that was made in this process, and encodes neither its inputs nor its result as messages.

        Raises:
            CutawayError: the request cannot be run.
        """
        outcomes: list[Outcome] = []
        with raising_errors():
            plan, _ = self._plan(wire_requests.validated(request), NEVER_CANCELLED, NONE_FAILED)
            self._answer_plans({0: plan}, lambda _, outcome: outcomes.append(outcome))
            return self._complete(outcomes[0], plan.request)

    def answer(self, calls: Sequence[Call]) -> Iterator[bytes]:
        """Runs a turn of calls. Never raises: an error is a reply.

        Yields:
            A serialised `cutaway.v1.WorkerReply` for every call, in order. The model has run before the first one.
        """
        replies: dict[int, Parts] = {}
        later: list[Callable[[], None]] = []
        self.run(calls, replies.__setitem__, lambda run, _: later.append(run))
        for run in later:
            run()
        yield from (b"".join(replies.pop(position)) for position in range(len(calls)))

    def run(self, calls: Sequence[Call], reply: Callable[[int, Parts], None], later: Later) -> None:
        """Runs a turn of calls. Never raises: an error is a reply.

        Args:
            calls: the turn.
            reply: gets the position of each call and its serialised `cutaway.v1.WorkerReply` when that is there; the
                parts of it may be the memory of tensors, which nothing changes later.
            later: gets functions that run the long ones of the calls, and the positions of these.
        """
        start = time.perf_counter()
        short: dict[int, _Decoded] = {}
        long: dict[int, _Decoded] = {}
        with self._running(calls):
            for position, call in enumerate(calls):
                item = _catch(self._decode, call)
                if not isinstance(item, _Decoded):
                    reply(position, self._reply(item, start))
                elif item.plan.request.generate is not None:
                    tell = partial(self._told, item, partial(reply, position), start)
                    self._writers.put(writer := Writer(item.plan, call, tell))
                    later(partial(self._writers.run, writer), [position])
                else:
                    (long if item.passes > _MOST_PASSES else short)[position] = item
            for group in alike({position: item.plan for position, item in long.items()}):
                items = {position: long.pop(position) for position in group}
                later(partial(self._run_long, items, reply, start), list(group))
            self._answer_decoded(short, reply, start)

    def _run_long(self, items: dict[int, _Decoded], reply: Callable[[int, Parts], None], start: float) -> None:
        """Runs calls that `run` has passed to ``later`` because they take many passes."""
        with self._running([item.call for item in items.values()]):
            self._answer_decoded(items, reply, start)

    def _write(self, several: Sequence[Writer], others: Others | None) -> None:
        """Answers calls that write tokens, and those of ``others`` that join them."""
        with self._running([writer.call for writer in several]):
            plans = {number: writer.plan for number, writer in enumerate(several)}
            self._answer_plans(plans, lambda number, outcome: several[number].tell(outcome), others)

    def _told(self, item: _Decoded, reply: Callable[[Parts], None], start: float, outcome: Outcome) -> None:
        """Replies to a call with its outcome."""
        self._ran_out |= lacked_memory(outcome)
        reply(self._reply(_catch(self._encode, item, outcome), start))

    def _fits_beside(self, plan: RequestPlan) -> bool:
        return self.memory is None or self._needs(plan, self.memory) <= self.memory.own

    def _answer_decoded(self, items: dict[int, _Decoded], reply: Callable[[int, Parts], None], start: float) -> None:
        """Runs decoded calls together where possible, and passes each reply on as soon as its result is there."""

        def tell(position: int, outcome: Outcome) -> None:  # when a reply is out, nothing of its call is left
            self._told(items.pop(position), partial(reply, position), start, outcome)

        self._answer_plans({position: item.plan for position, item in items.items()}, tell)

    def _answer_plans(self, plans: dict[int, RequestPlan], tell: Tell, others: Others | None = None) -> None:
        """Tells the outcome of each plan. Those that need more than this worker's own memory run one by one, when it is
        free; so do those that run out of it beside others."""
        memory, model = self.memory, self._model
        needs = {} if memory is None else {number: self._needs(plan, memory) for number, plan in plans.items()}
        own = {number: plan for number, plan in plans.items() if memory is None or needs[number] <= memory.own}
        if memory is not None:
            model.request_bytes, model.has_more_memory = memory.own, memory.most > memory.own
        ran_out = self._answer_own(own, tell, others)
        if ran_out and self.threads.are_shared:
            with self.threads.alone():
                ran_out = self._answer_own(ran_out, tell, None)
        for number, plan in plans.items():
            if memory is not None and (number in ran_out or number not in own):
                needed = memory.most if number in ran_out else needs[number]
                tell(number, _catch(self._run_with_more, plan, needed, memory))

    def _answer_own(
        self, plans: Mapping[int, RequestPlan], tell: Tell, others: Others | None
    ) -> dict[int, RequestPlan]:
        """Answers plans, and returns those that shall run again since they ran out of memory."""
        again, numbers = Group(), list(plans)

        def told(index: int, outcome: Outcome) -> None:
            if self._model.has_more_memory and lacked_memory(outcome):
                again[numbers[index]] = plans[numbers[index]]
            else:
                tell(numbers[index], outcome)

        with in_few_threads(plans.values()):
            answer_batch([*plans.values()], told, others)
        return again

    def _needs(self, plan: RequestPlan, memory: RequestMemory) -> int:
        """Returns the bytes that ``plan`` needs as far as it is known: from its rows, or from one like it before."""
        return max(int(self._model.properties.get(_need(plan), 0)), _OVERHEAD * least_bytes(plan, memory.most))

    def _run_with_more(self, plan: RequestPlan, needed: int, memory: RequestMemory) -> Outcome:
        """Runs a request by itself, with ``needed`` bytes of the pool that workers share, and with all of it if it runs
        out again; remembers what such a request needs."""
        model, is_all = self._model, needed >= memory.most
        with ExitStack() as ends:
            with self.threads.released():
                allowed = ends.enter_context(memory.reserved(needed, plan.cancellation.raise_if_cancelled))
            model.request_bytes, model.has_more_memory = allowed, not is_all
            (outcome,) = inspect_batch([plan])
        if is_all or not lacked_memory(outcome):
            model.properties[_need(plan)] = needed
            return outcome
        return self._run_with_more(plan, memory.most, memory)

    def _reply(self, outcome: Reply | BaseException, start: float) -> Parts:
        """Returns a serialised reply with the time that the worker had the call; an exception becomes a failure."""
        self._ran_out |= lacked_memory(outcome)
        reply = Reply.failed(as_failure(outcome)) if isinstance(outcome, BaseException) else outcome
        reply.beside.worker_ms = _since(start)
        return reply.serialized()

    @contextmanager
    def _running(self, calls: Collection[Call]) -> Iterator[None]:
        """Surrounds passes for ``calls``: they end early if no caller waits; the model's spans belong to a call."""
        with self._cancelled_passes.watching(), attached(call.traceparent for call in calls):
            yield

    def stream(self, call: Call) -> Iterator[chunks.Piece]:
        """Runs a call of the kind ``stream``, as a job, for a transport that may buffer the whole reply, which is then
        limited to the size of one message. Never raises: an error is the last piece.

        Yields:
            The pieces of the reply, `cutaway.v1.StreamPiece`.
        """
        replies: SimpleQueue[bytes] = SimpleQueue()

        def job() -> None:
            try:
                (answer,) = self.answer([call._replace(buffered=True, begun=replies.put)])
            except Exception as failure:
                answer = worker_pb2.WorkerReply(failure=as_failure(failure)).SerializeToString()
            replies.put(answer)

        self.threads.put(Job(job))
        reply = worker_pb2.WorkerReply.FromString(replies.get())
        yield from self.pieces.take(reply.pieces) or [chunks.worker_piece(reply)]

    def _decode(self, call: Call) -> _Decoded | Reply:
        """Returns the decoded request; or the reply, if it needs no pass of the model."""
        call.check()
        check_deadline(call.cancellation.deadline, "while the call was queued")
        call.cancellation.raise_if_cancelled()
        return self._kinds[call.kind](call)

    def _stream(self, call: Call) -> _Decoded:
        routed = chunks.decode_stream_request(call.payload)
        decoded = self._inspect(call._replace(payload=routed.request))
        plan = decoded.plan
        complete, most_bytes = partial(self._complete, request=plan.request), self._settings.max_message_bytes
        streamed = StreamedReply(call, plan.request, routed.chunk_bytes, self.pieces, complete, most_bytes)
        if routed.in_parts:
            streamed.passes = expected_passes(plan)
            plan = replace(plan, listener=streamed, cancellation=streamed.cancellation)
        return decoded._replace(plan=plan, streamed=streamed)

    def _inspect(self, call: Call) -> _Decoded:
        """Decodes and plans an ``inspect`` call; `_answer_decoded` runs the plan later."""
        start = time.perf_counter()
        read = wire_requests.decode_in_place(call.payload, max_unpacked_bytes=self._settings.max_message_bytes)
        return _Decoded(*self._plan(read.request, call.cancellation, read.failed), call, _since(start))

    def _plan(self, request: InspectRequest, cancellation: Cancellation, failed: Failed) -> tuple[RequestPlan, int]:
        """Returns the plan, and how many passes of each row it may take besides the first."""
        if request.raw:
            check_counts(request, len(failed), self._settings)  # before they are decoded
        inputs, check = self._inputs.of(request, cancellation), partial(check_steps, self._settings)
        if not failed and (again := planned_before(self._model, request, inputs, cancellation)):
            return again, 0
        check_counts(request, len(failed), self._settings)
        read = self._inputs.read(request, cancellation)
        plan = plan_request(self._model, read, inputs, cancellation, failed, check)
        if self.memory is not None:
            check_memory(request, least_bytes(plan, self.memory.most), self.memory.most)
        plan, passes = within_passes(plan, costs(plan), self._settings.max_passes)
        return kept_plan(plan, request), plan.scalars + passes // max(1, plan.rows)

    def _encode(self, decoded: _Decoded, result: InspectResult | BaseException) -> Reply:
        """Returns the reply; for a streamed one, the number under which its pieces wait."""
        request = decoded.plan.request
        if decoded.streamed is not None:
            return Reply(decoded.streamed.end(result, decoded.decode_ms))
        timings = Timings()
        with timed(timings, "encode_ms"):
            reply = Reply.of(self._complete(result, request), request.compression)
            check_reply_size(reply.size, request.max_reply_bytes, self._settings.max_message_bytes)
        told = reply.beside.timings
        told.decode_ms, told.encode_ms = decoded.decode_ms, timings.encode_ms
        return reply

    def _complete(self, result: InspectResult | BaseException, request: InspectRequest) -> InspectResult:
        """Adds texts of tokens, names and versions to ``result``, and casts its arrays to the requested data types.

        Raises the error of a request that failed.
        """
        if isinstance(result, CutawayError):
            raise naming_undeclared_type(result, self._model, request.tensors) from result.__cause__
        if isinstance(result, BaseException):
            raise result
        named = with_names(self._adapter, self._model, result)
        return apply_reply_options(changed(named, provenance=self._provenance(result.provenance)), request)

    def _describe(self, call: Call) -> Reply:
        request = wire_models.decode_model_request(call.payload)
        asked = {field: getattr(request, field) for field in wire_models.DETAILS}
        if (key := tuple(asked.values())) not in self._descriptions:
            detail = self.describe(**asked)
            response = inspection_service_pb2.GetModelResponse(model=wire_models.encode(detail))
            check_reply_size(response.ByteSize(), 0, self._settings.max_message_bytes)
            self._descriptions[key] = response.SerializeToString()
        return Reply(worker_pb2.WorkerReply(), [self._descriptions[key]])

    def describe(self, *, operators: bool = False, example: bool = False, data_flow: bool = False) -> ModelDetail:
        """Returns inputs, outputs and modules; on request operators of a pass, the example, and its data flow."""
        inputs = self._example()
        modules, outputs, inside = describe(self._model, inputs, operators=operators)
        edges = trace_data_flow(self._model, inputs) if data_flow else ()
        self._model.passes.reset()
        return ModelDetail(
            model=self.name,
            inputs=tuple(self._model.inputs),
            outputs=outputs,
            labels=tuple(self._model.labels),
            media_types=tuple(self._adapter.media_types),
            modules=modules,
            provenance=self._provenance(provenance(self._model)),
            operators=inside,
            data_flow=edges,
            example={name: to_numpy(tensor) for name, tensor in inputs.items()} if example and inputs else {},
            **outlines(self._model.kept),
        )

    def _provenance(self, provenance: Provenance) -> Provenance:
        return changed(provenance, model=self.name.model, version=self.name.version, cutaway_version=__version__)


def _catch(function: Callable[..., T], *arguments: Any) -> T | BaseException:
    """Returns the result or the exception of a call: a model that exits or cancels ends only its own request."""
    try:
        return function(*arguments)
    except BaseException as failure:
        return failure


def _need(plan: RequestPlan) -> Hashable:
    """Returns the key under which a worker remembers how many bytes requests like ``plan`` need."""
    methods = tuple(type(attribution.request) for attribution in plan.attributions)
    return "needs", plan.rows, methods, kind_of_request(plan)


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1000
