"""The backend of a gateway: it sends serialised requests to workers and returns their serialised replies."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.tensors import Buffer
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.server.batching import Answers, Batcher, FairSlots, NotBegun, caller_id
from cutaway.server.model_store import Catalog
from cutaway.server.observability.call_watch import current_call
from cutaway.server.settings import Settings
from cutaway.v1 import worker_pb2


class WorkerLink(Protocol):
    """A worker, which runs turns of calls one after the other."""

    turns: Turns

    @property
    def name(self) -> ModelName:
        """Its model."""

    @property
    def late_s(self) -> float:
        """The seconds without progress since all its calls should have been done."""

    def send(self, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer], waiting: int) -> None:
        """Sends a turn, which is answered later; after its end with ``WORKER_DIED``, what has not arrived is lost.

        Args:
            calls: the turn.
            answers: gets the position of each call, and its reply; of a streamed reply that begins while its model
                runs, twice. Also calls that take long and keep no other turn from running, and the end, which is
                `NotBegun` if the worker died before it began this turn.
            waiting: how many other calls of the model wait for a worker.
        """

    def cancel(self, number: int) -> None:
        """Cancels a call, if this worker has it."""

    def pieces(self, number: int, until: float) -> AsyncGenerator[bytes, None]:
        """Yields the messages of a streamed reply, serialised `cutaway.v1.InspectStreamResponse`.

        Args:
            number: `cutaway.v1.WorkerReply.pieces`.
            until: the deadline, in Unix seconds.

        Raises:
            CutawayError: ``WORKER_DIED``, or ``DEADLINE_EXCEEDED``.
        """


class Answer(NamedTuple):
    """A serialised `cutaway.v1.WorkerReply`, the worker that sent it, and the number of the call."""

    reply: Buffer
    worker: WorkerLink
    number: int


class _Turn(NamedTuple):
    """Calls that were sent together: their positions by number, and those of them that keep other turns from
    running."""

    waiting: dict[int, int]
    occupying: set[int]
    deadline: float
    answers: Answers[Answer]


class Turns:
    """The turns that one worker has and has not answered in full, in order.

    Args:
        worker: the worker.

    Attributes:
        last_added: when the last one was added, in the event loop's time.
    """

    def __init__(self, worker: WorkerLink) -> None:
        self.last_added = 0.0
        self._worker = worker
        self._turns: list[_Turn] = []

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def latest_deadline(self) -> float:
        """The latest deadline of their calls, in Unix seconds; 0 without any."""
        return max((turn.deadline for turn in self._turns), default=0.0)

    @property
    def occupying(self) -> int:
        """The number of turns that keep others from running."""
        return sum(bool(turn.occupying) for turn in self._turns)

    def add(self, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer]) -> None:
        """Adds a turn."""
        numbers = {call.number: position for position, call in enumerate(calls)}
        self._turns.append(_Turn(numbers, {*numbers}, max(call.deadline for call in calls), answers))
        self.last_added = asyncio.get_running_loop().time()

    def begun(self, number: int, reply: Buffer) -> None:
        """Passes on the first reply to a call that still runs."""
        turn = next(turn for turn in self._turns if number in turn.waiting)
        turn.answers(turn.waiting[number], Answer(reply, self._worker, number))

    def arrived(self, number: int, reply: Buffer) -> None:
        """Passes on the reply to a call."""
        turn = next(turn for turn in self._turns if number in turn.waiting)
        turn.occupying.discard(number)
        turn.answers(turn.waiting.pop(number), Answer(reply, self._worker, number))
        if not turn.waiting:
            self._turns.remove(turn)
            turn.answers.end()

    def set_aside(self, number: int) -> None:
        """Notes that a call may take long, and keeps no other turn from running."""
        for turn in [*self._turns]:
            if number in turn.occupying:
                turn.occupying.discard(number)
                turn.answers.set_aside(turn.waiting[number])

    def lost(self) -> None:
        """Ends all turns after the worker has died: with ``WORKER_DIED``, or `NotBegun` for turns that had not begun.

        The turns that were set aside may have begun, and so may the first of the other turns.
        """
        turns, self._turns = self._turns, []
        first = next((turn for turn in turns if turn.occupying), None)
        for turn in turns:
            turn.answers.end(worker_died() if turn is first or not turn.occupying else NotBegun())


def worker_died() -> CutawayError:
    """Returns the error of a call whose worker died."""
    return error(Reason.WORKER_DIED, "the worker process died during this call; a new one is starting")


SetServing: TypeAlias = Callable[[Collection[ModelName]], Awaitable[None]]
"""A function that sets which models health checks report as serving; the gateway serves if any model does."""

Supervise: TypeAlias = Callable[[SetServing], Coroutine[Any, Any, None]]
"""A function that keeps a backend running and reports which models serve; it never returns."""

MAX_BATCH_BYTES = 4 << 20
"""The largest size of a batch with more than one call: large calls gain nothing from a batch."""

_MAX_STREAMS = 8
"""The most unfinished streamed replies of one model: its workers hold them in memory."""


class Workers(Protocol):
    """The workers of a backend, which come and go.

    Attributes:
        sends_ahead: whether a worker gets its next batch while it runs another.
        changed: called when workers have changed, or whether they may come.
    """

    sends_ahead: bool
    changed: Callable[[], None]

    def may_come(self, name: ModelName) -> bool:
        """Returns whether calls of a model may wait for a worker."""

    def of(self, name: ModelName) -> Sequence[WorkerLink]:
        """Returns the workers of a model."""


class Backend:
    """The models of a gateway: calls to them go to workers in batches.

    Args:
        workers: the workers.
        catalog: their models.
        settings: sizes of queues and batches.

    Attributes:
        catalog: the models.
        batchers: the request queues of the models that have been called.
    """

    def __init__(self, workers: Workers, catalog: Catalog, settings: Settings) -> None:
        self.catalog = catalog
        self.batchers: dict[ModelName, Batcher[Answer]] = {}
        self._settings = settings
        self._numbers = itertools.count(1)
        self._streams: defaultdict[ModelName, FairSlots] = defaultdict(lambda: FairSlots(_MAX_STREAMS))
        self._workers = workers
        workers.changed = self._workers_changed

    def set_catalog(self, catalog: Catalog) -> None:
        """Sets which models there are. Running calls finish where they are."""
        self.catalog = catalog
        self._workers_changed()

    async def stream(self, name: ModelName, payload: bytes, timeout_s: float) -> AsyncGenerator[bytes, None]:
        """Sends a serialised `cutaway.v1.InspectStreamRequest` to model ``name``; the model runs other requests while
        its reply is read. A caller may have half of the unfinished replies, and waits for its turn.

        Yields:
            Serialised `cutaway.v1.InspectStreamResponse` messages; one of them may hold a failure.

        Raises:
            CutawayError: there is no reply.
        """
        until = time.time() + timeout_s
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._streams[name].slot(timeout_s))
            except asyncio.TimeoutError:
                why = "the deadline passed while other streamed replies of this model were being sent"
                raise error(Reason.DEADLINE_EXCEEDED, why) from None
            answer = await self.call(name, "stream", payload, until - time.time())
            number = decode_worker_reply(answer.reply).pieces
            messages = await stack.enter_async_context(aclosing(answer.worker.pieces(number, until)))
            try:
                async for message in messages:
                    yield message
            except BaseException:
                answer.worker.cancel(answer.number)  # its model may still run
                raise

    async def call(self, name: ModelName, kind: str, payload: bytes, timeout_s: float) -> Answer:
        """Sends a request to model ``name``, and returns the reply with its worker.

        If the current task is cancelled, cancels the call on every worker of the model.

        Args:
            name: the model.
            kind: ``inspect``, ``stream`` or ``describe``.
            payload: the serialised request.
            timeout_s: how long the caller waits, in seconds.

        Raises:
            CutawayError: there is no reply.
        """
        message = worker_pb2.WorkerCall(
            number=next(self._numbers),
            deadline=time.time() + timeout_s,
            caller=caller_id.get(),
            traceparent=current_call().traceparent,
            **{kind: payload},
        )
        try:
            return await self._batcher(name).call(message, len(payload), timeout_s)
        except asyncio.CancelledError:
            for worker in self._workers.of(name):
                worker.cancel(message.number)
            raise

    def _batcher(self, name: ModelName) -> Batcher[Answer]:
        if (found := self.batchers.get(name)) is None:
            found = self.batchers[name] = Batcher(
                partial(self._send, name),
                workers=lambda: len(self._workers.of(name)),
                unavailable=partial(self._unavailable, name),
                sends_ahead=self._workers.sends_ahead,
                max_calls=self._settings.max_batch_size,
                max_bytes=min(self._settings.max_message_bytes, MAX_BATCH_BYTES),
                max_pending=self._settings.max_queue_length,
            )
        return found

    def _send(
        self, name: ModelName, calls: Sequence[worker_pb2.WorkerCall], answers: Answers[Answer], waiting: int
    ) -> None:
        """Sends a batch to the first worker by `_preference`, for the batcher, which knows that there is one."""
        workers = self._workers.of(name)
        worker = workers[0] if len(workers) == 1 else min(workers, key=_preference)
        worker.send(calls, answers, waiting)

    def _unavailable(self, name: ModelName) -> CutawayError | None:
        """Returns why calls of a model cannot wait for a worker, of which there is none; None if they can."""
        if name not in self.catalog.all():
            return error(Reason.MODEL_NOT_FOUND, f"{name.model} is no longer served", "model")
        if not self._workers.may_come(name):
            return error(Reason.BACKEND_UNAVAILABLE, "the processes that run the model are being restarted")
        return None

    def _workers_changed(self) -> None:
        for batcher in self.batchers.values():
            batcher.send_batches()


def _preference(worker: WorkerLink) -> tuple[bool, int, int, float]:
    """Returns a sort key: first workers on time, then by fewest turns, then by the longest time without a new turn."""
    return worker.late_s > 0, worker.turns.occupying, len(worker.turns), worker.turns.last_added
