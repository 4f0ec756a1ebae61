"""The threads of one model: one job runs at a time, because hooks are state of the model.

A job is a turn of calls, or one long request. It has a thread of its own, and goes on until its end, or until its next
pass once another job shall run: `cutaway.engine.model.inspected_model` then takes off all that it has on the model.

Callers share the time of the model, however many jobs they have. The next job is that of the caller who has used least.
A caller who comes back has not saved up more than `CREDIT_S`. Of the jobs of one caller, short and long ones share its
time. A job that has not begun goes first as soon as its caller has used less, a long one not before a short one; those
that have begun alternate by `SLICE_S`.

No job waits for memory, or for another job's end, while it has the model: so whoever waits for it gets it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import torch

from cutaway.engine.model.session import Turns
from cutaway.server.memory import keep_late_modules, start, starting_threads

T = TypeVar("T")

log = logging.getLogger(__name__)

IDLE = 0.0
"""The value of `ModelThreads.busy_until` while no job runs."""

SLICE_S = 0.05
"""The seconds for which a job runs on while another one waits that has begun as well."""

CREDIT_S = 0.25
"""The seconds that a caller who had no job may be behind the others."""

_QUIET_S = 1.0
"""The seconds without a job after which a model is idle."""

_GIVES_WAY_S = 30.0
"""How long work in idle time may take to end for a job, before the worker counts as hanging."""

_NOBODY = "\0"
"""The caller of work in idle time."""

MOST_BEGUN = 8
"""The most jobs that have begun and not ended, since they hold memory; those of one caller are half as many."""


@dataclass(eq=False)
class Job:
    """A job of a model.

    Attributes:
        run: does the work.
        callers: whose it is; its time is theirs in equal parts.
        deadline: after which nobody waits for it, in Unix seconds.
        is_cancelled: returns whether nobody waits any more; then it goes first, and ends.
        set_aside: called when it lets others run for the first time.
        is_divisible: whether it lets others run at all.
        is_long: whether it takes many passes.
    """

    run: Callable[[], Any]
    callers: Sequence[str] = ("",)
    _: KW_ONLY
    deadline: float = math.inf
    is_cancelled: Callable[[], bool] = lambda: False
    set_aside: Callable[[], None] = lambda: None
    is_divisible: bool = True
    is_long: bool = False
    used_s: float = field(init=False, default=0.0)
    number: int = field(init=False, default=0)
    thread: int = field(init=False, default=0)
    has_begun: bool = field(init=False, default=False)
    is_shared: bool = field(init=False, default=False)
    resumed: threading.Semaphore = field(init=False)


_Mailbox: TypeAlias = "SimpleQueue[Job | None]"


class ModelThreads(Turns):
    """The threads of one model, and its jobs.

    They are daemons: a model that never returns must not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []
        self._idle: list[_Mailbox] = []
        self._put = 0
        self._waiting: list[Job] = []
        self._begun: list[Job] = []
        self._alone: list[Job] = []
        self._filler: Job | None = None
        self._end_filler: Callable[[], None] = lambda: None
        self._is_closed = threading.Event()
        self._running: Job | None = None
        self._since = 0.0
        self._until = IDLE
        self._least_used = 0.0
        self._used: defaultdict[str, float] = defaultdict(float)
        self._used_by_kind: defaultdict[tuple[str, bool], float] = defaultdict(float)

    @property
    def busy_until(self) -> float:
        """The deadline of the job that runs, in Unix seconds; `IDLE` without one. Safe to read from any thread."""
        return self._until

    def put(self, job: Job) -> None:
        """Runs ``job`` when its turn has come; an exception is only logged."""
        with self._lock:
            self._enter(job)
            if self._filler is not None and self._running is self._filler:
                self._until = time.time() + _GIVES_WAY_S
        self._end_filler()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Runs ``function`` as a job, and returns its future result."""
        future: Future[T] = Future()
        self.put(Job(partial(_complete, future, function)))
        return future

    def fill_idle_time(self, run: Callable[[Callable[[], bool]], float | None], give_way: Callable[[], None]) -> None:
        """Runs work from now on whenever there has been no job for a while.

        Args:
            run: does some of it, and returns after how many seconds without a job it does more; None for none before
                the next job. It ends early if the function that it gets returns that a job waits.
            give_way: called when one comes.
        """
        self._end_filler = give_way
        start(threading.Thread(target=self._fill, args=(run,), name=f"cutaway-{self._name}-idle", daemon=True))

    def _fill(self, run: Callable[[Callable[[], bool]], float | None]) -> None:
        """Enters a job for idle time whenever no other job came for a while; runs in its own thread until `close`."""
        seen, pause_s, has_more = 0, _QUIET_S, True
        while not self._is_closed.wait(pause_s):
            pause_s = _QUIET_S
            with self._lock:
                if self._begun or self._waiting or seen != self._put:
                    seen, has_more = self._put, True
                    continue
                if not has_more:
                    continue
                done: Future[float | None] = Future()
                work = partial(_complete, done, partial(run, self._is_wanted))
                self._filler = Job(work, (_NOBODY,), is_divisible=False)
                self._enter(self._filler)
                seen = self._filler.number
                self._changed.wait_for(lambda: self._filler not in self._begun)
            told = done.result()
            has_more, pause_s = told is not None, _QUIET_S if told is None else told

    def _is_wanted(self) -> bool:
        """Returns whether a job waits for the work in idle time to end."""
        return bool(self._waiting) or self._is_closed.is_set()

    def close(self, grace_s: float) -> None:
        """Ends the threads when their jobs are done; after ``grace_s`` seconds, abandons those that are not."""
        self._is_closed.set()
        self._end_filler()
        with self._lock:
            self._changed.wait_for(lambda: not (self._begun or self._waiting), grace_s)
            at_work = {job.thread for job in self._begun}
            ended = [thread for thread in self._threads if thread.ident not in at_work]
            for mailbox in self._idle:
                mailbox.put(None)
            self._idle.clear()
        for thread in ended:
            thread.join(grace_s)

    @property
    def used_s(self) -> float:
        """The seconds for which the job of this thread has had the model."""
        with self._lock:
            self._charge()
        job = self._own()
        return 0.0 if job is None else job.used_s

    def serve(self, callers: Sequence[str], deadline: float) -> None:
        """Makes this thread's job one for ``callers``, until ``deadline``, in Unix seconds: it does the work of others
        too. Its time from now on is theirs."""
        job = self._own()
        if job is None or not callers:
            return
        with self._lock:
            self._charge()
            job.callers, job.deadline = list(dict.fromkeys(callers)), max(job.deadline, deadline)
            for caller in job.callers:
                self._used[caller] = max(self._used[caller], self._least_used - CREDIT_S)
            self._until = max(job.deadline, time.time())

    @property
    def are_over(self) -> bool:
        """Whether another job shall run before the next pass of this thread's job."""
        job = self._own()
        if job is None or not (self._waiting and job.is_divisible):
            return False
        with self._lock:
            self._charge()
            best = self._best()
            return best is not None and self._goes_before(best, job)

    @property
    def is_divisible(self) -> bool:
        """Whether this thread's job lets others run."""
        job = self._own()
        return job is None or job.is_divisible

    @property
    def are_shared(self) -> bool:
        """Whether other jobs have begun since this thread's job did."""
        job = self._own()
        return job is not None and job.is_shared

    @contextmanager
    def released(self) -> Iterator[None]:
        """Lets other jobs run during the block, which must not use the model, and waits for a turn after it."""
        job = self._own()
        if job is None:
            yield
            return
        if not job.is_long:
            job.set_aside()
        job.resumed = threading.Semaphore(0)
        with self._lock:
            self._charge()
            if not job.is_long:
                job.is_long = True
                for caller in job.callers:
                    kind = caller, True
                    self._used_by_kind[kind] = max(self._used_by_kind[kind], self._used_by_kind[caller, False])
            self._stop_running()
        start = time.thread_time()
        try:
            yield
        finally:
            with self._lock:
                self._charge_to(job, time.thread_time() - start)
                self._waiting.append(job)
                self._run_next()
            job.resumed.acquire()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Runs the block when all other jobs that have begun have ended; none begins meanwhile."""
        job = self._own()
        if job is None:
            yield
            return
        with self._lock:
            self._alone.append(job)
        try:
            with self.released():
                pass
            job.is_shared = False
            yield
        finally:
            with self._lock:
                self._alone.remove(job)

    def _own(self) -> Job | None:
        """Returns the job of this thread, if that one runs."""
        job = self._running
        return job if job is not None and job.thread == threading.get_ident() else None

    # What follows is called with the lock.

    def _enter(self, job: Job) -> None:
        """Adds a job to those that wait, and starts the next one if none runs.

        A caller who comes back after a pause is at most `CREDIT_S` behind the caller who has used least.
        """
        self._charge()
        others = [self._used[caller] for other in (*self._begun, *self._waiting) for caller in other.callers]
        if not others:
            self._least_used = 0.0
            self._used.clear()
            self._used_by_kind.clear()
        self._least_used = max(self._least_used, min(others, default=0.0))
        for caller in job.callers:
            self._used[caller] = max(self._used[caller], self._least_used - CREDIT_S)
            of_other_kind = self._used_by_kind[caller, not job.is_long]
            kind = caller, job.is_long
            self._used_by_kind[kind] = max(self._used_by_kind[kind], of_other_kind - CREDIT_S)
        self._put += 1
        job.number = self._put
        self._waiting.append(job)
        self._run_next()

    def _charge(self) -> None:
        """Counts the time until now to the job that runs, and to its callers."""
        now, job = time.perf_counter(), self._running
        if job is not None:
            self._charge_to(job, now - self._since)
        self._since = now

    def _charge_to(self, job: Job, seconds: float) -> None:
        job.used_s += seconds
        for caller in job.callers:
            self._used[caller] += seconds / len(job.callers)
            self._used_by_kind[caller, job.is_long] += seconds / len(job.callers)

    def _candidates(self) -> Iterator[Job]:
        """Yields the waiting jobs that may run now: those that have begun, and new ones if there is room.

        A job that enters `alone` may run once no other job has begun.
        """
        held = Counter(caller for job in self._begun for caller in job.callers)
        has_room = len(self._begun) < MOST_BEGUN and not self._alone
        for job in self._waiting:
            if job in self._alone:
                if job is self._alone[0] and all(other in self._alone for other in self._begun):
                    yield job
            elif job.has_begun or (has_room and any(held[caller] < MOST_BEGUN // 2 for caller in job.callers)):
                yield job

    def _best(self) -> Job | None:
        return min(self._candidates(), key=self._rank, default=None)

    def _rank(self, job: Job) -> tuple[bool, float, float, float, int]:
        """Returns what orders jobs: the first is the next."""
        caller = min(job.callers, key=self._used.__getitem__)
        goes_on = not (job.has_begun and job.is_cancelled())
        return goes_on, self._used[caller], self._used_by_kind[caller, job.is_long], job.used_s, job.number

    def _goes_before(self, best: Job, job: Job) -> bool:
        """Returns whether ``best`` shall run before the next pass of ``job``, which runs."""
        goes_on, of_caller, of_kind, used_s, _ = self._rank(best)
        _, own, own_of_kind, own_used_s, _ = self._rank(job)
        lead = CREDIT_S if best.is_long and not job.is_long else SLICE_S if best.has_begun else 0.0
        if not goes_on or of_caller != own:
            return not goes_on or of_caller < own - lead
        if best.is_long != job.is_long:
            return of_kind < own_of_kind - lead
        return used_s < own_used_s - SLICE_S

    def _stop_running(self) -> None:
        self._running, self._until = None, IDLE
        self._run_next()

    def _run_next(self) -> None:
        """Lets the next job run, if none does."""
        job = self._best() if self._running is None else None
        if job is None:
            return
        self._waiting.remove(job)
        self._running, self._since = job, time.perf_counter()
        # A job whose deadline passed while it waited hangs only if it still runs later.
        self._until = IDLE if job is self._filler else max(job.deadline, time.time())
        if job.has_begun:
            job.resumed.release()
            return
        job.has_begun = True
        self._begun.append(job)
        if len(self._begun) > 1:
            for each in self._begun:
                each.is_shared = True
        mailbox = self._idle.pop() if self._idle else self._new_thread()
        mailbox.put(job)

    def _new_thread(self) -> _Mailbox:
        """Starts a thread that stays for later jobs too; returns the queue from which the thread takes jobs."""
        mailbox: _Mailbox = SimpleQueue()
        ready = threading.Event()
        name = f"cutaway-{self._name}"
        thread = threading.Thread(target=self._serve, args=(mailbox, ready), name=name, daemon=True)
        self._threads.append(thread)
        with starting_threads():  # the stacks of its parallel loops too count as memory of requests
            thread.start()
            ready.wait(_PATIENCE_S)
        return mailbox

    def _serve(self, mailbox: _Mailbox, ready: threading.Event) -> None:
        logging.raiseExceptions = False  # a model may close stderr: a line of the log would then end this thread
        _start_loops()
        ready.set()
        while self._serve_next(mailbox):
            pass

    def _serve_next(self, mailbox: _Mailbox) -> bool:
        """Runs a job, and keeps nothing of it; returns whether there may be another."""
        job = mailbox.get()
        if job is None:
            return False
        job.thread = threading.get_ident()
        try:
            job.run()
        except BaseException:
            log.exception("unexpected exception in the thread of a model")
        with self._lock:
            goes_on = not self._is_closed.is_set()
            self._charge()
            self._begun.remove(job)
            if goes_on:
                self._idle.append(mailbox)
            self._stop_running()
            if not self._begun:
                keep_late_modules()
            self._changed.notify_all()
        return goes_on


_PATIENCE_S = 5.0

_GRAIN = 1 << 15
"""The elements that PyTorch gives to one thread of a parallel loop."""


def _start_loops() -> None:
    """Starts the threads of this thread's parallel loops: later, a lack of memory for their stacks would end the
    process."""
    torch.zeros(_GRAIN * torch.get_num_threads()).add_(1)


def _complete(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as failure:
        future.set_exception(failure)
