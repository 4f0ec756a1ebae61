"""A model behind a running front door: several shards at once, each with one call; who is too busy is asked again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from cutaway.client import Client
from cutaway.errors import TABLE, CutawayError, Reason, at, error
from cutaway.jobs.shards import Shards
from cutaway.jobs.sources import Column, Source
from cutaway.jobs.spec import Job, Service
from cutaway.jobs.task import Model, Task, Tick, Written, source_of
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail
from cutaway.trust import Tls

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


@contextmanager
def opened(job: Job) -> Iterator[Model]:
    """The job's model, asked by its address.

    Raises:
        CutawayError: nobody answers there, or knows the model.
    """
    spec, engine = job.model, job.engine
    patience = engine.patience_s if isinstance(engine, Service) else 0.0
    tls = Tls(spec.tls_ca) if spec.tls_ca is not None else spec.tls
    with ExitStack() as stack:
        with at("model"):
            client = stack.enter_context(Client(spec.address, timeout=spec.timeout_s, token=_token(job), tls=tls))
            model = Remote(client, spec.name, patience)
        yield model


def work(task: Task, model: Model, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Write ``shards``, some at a time; where one cannot be written, those that were begun are the last."""
    engine = task.job.engine
    at_once = min(engine.in_flight if isinstance(engine, Service) else 1, max(len(shards), 1))
    working = Shards(task, model, _OneAtATime(source_of(task.job)))
    over = threading.Event()

    def write(shard: int) -> Written | None:
        if over.is_set():
            return None
        try:
            return working.write(shard, tick)
        except BaseException:
            over.set()
            raise

    with ThreadPoolExecutor(at_once) as pool:
        try:
            for written in pool.map(write, shards):
                if written is not None:
                    yield written
        finally:
            over.set()


class _OneAtATime:
    """A data set that several threads may read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self.rows = source.rows
        self.columns = source.columns
        self.fingerprint = source.fingerprint

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Column]:
        with self._lock:
            return self._source.read(start, stop, columns)


class Remote:
    """A model that answers calls.

    Args:
        client: how to reach it.
        name: what it is called there.
        patience_s: how long one question is asked again while the service is away or too busy.

    Attributes:
        detail: what it takes and where it comes from.
    """

    def __init__(self, client: Client, name: str, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self.detail: ModelDetail = client.get_model(name)

    def ask(self, request: InspectRequest) -> InspectResult:
        """Its answer to one question.

        Raises:
            CutawayError: the question has none, or nobody answered for as long as patience lasted.
        """
        until = time.monotonic() + self._patience_s
        wait = _FIRST_WAIT_S
        while True:
            try:
                return self._client.ask(request)
            except CutawayError as failure:
                if not _passing(failure) or time.monotonic() + wait > until:
                    raise
                time.sleep(max(wait, failure.retry_after_s or 0.0))
                wait = min(wait * 2, _LONGEST_WAIT_S)


def _passing(failure: CutawayError) -> bool:
    """Whether the same call may pass later; a deadline that was too short stays so."""
    known = TABLE.get(Reason(failure.reason)) if failure.reason in list(Reason) else None
    return known is not None and known.retryable and failure.reason != Reason.DEADLINE_EXCEEDED


def _token(job: Job) -> str | None:
    path = job.model.token_file
    if path is None:
        return None
    try:
        return path.read_text("utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise error(Reason.INVALID_VALUE, f"{path} holds no token", "token_file") from None
