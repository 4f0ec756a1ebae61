"""Sends requests to a running gateway, for several shards at once; retries calls that may succeed later."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager

from cutaway.client.client import Client
from cutaway.client.trust import Tls
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.jobs.shards import JobModel, ShardWriter, Task, Tick, Written, source_of
from cutaway.jobs.spec import Job, Service

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


@contextmanager
def opened(job: Job) -> Iterator[JobModel]:
    """Connects to the job's model for as long as the block runs.

    Raises:
        CutawayError: no service answers at the address, or it does not have the model.
    """
    spec, engine = job.model, job.engine
    patience_s = engine.patience_s if isinstance(engine, Service) else 0.0
    tls = Tls(spec.tls_ca) if spec.tls_ca is not None else spec.tls
    with ExitStack() as stack:
        with at("model"):
            client = stack.enter_context(Client(spec.address, timeout=spec.timeout_s, token=_token(job), tls=tls))
            model = RemoteModel(client, spec.name, patience_s)
        yield model


def work(task: Task, model: JobModel, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Writes ``shards``, several at once. If one fails, only those that have been started are finished."""
    engine = task.job.engine
    in_flight = min(engine.in_flight if isinstance(engine, Service) else 1, max(len(shards), 1))
    writer = ShardWriter(task, model, source_of(task.job))
    with ThreadPoolExecutor(in_flight) as pool:
        writing = [pool.submit(writer.write, shard, tick) for shard in shards]
        try:
            for done in as_completed(writing):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


class RemoteModel:
    """A model behind a service.

    Args:
        client: the connection.
        name: the model's name.
        patience_s: how long a request is retried while the service is unavailable or overloaded, in seconds.

    Attributes:
        detail: the model's inputs, outputs and provenance.
    """

    def __init__(self, client: Client, name: str, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        self.detail: ModelDetail = client.get_model(name)

    def inspect(self, request: InspectRequest) -> InspectResult:
        """Returns the result of ``request``.

        Raises:
            CutawayError: the request cannot be run, or the service was unavailable for too long.
        """
        until = time.monotonic() + self._patience_s
        wait = _FIRST_WAIT_S
        while True:
            try:
                return self._client.ask(request)
            except CutawayError as failure:
                if not _is_retryable(failure) or time.monotonic() + wait > until:
                    raise
                time.sleep(max(wait, failure.retry_after_s or 0.0))
                wait = min(wait * 2, _LONGEST_WAIT_S)


def _is_retryable(failure: CutawayError) -> bool:
    """Returns whether the same call may succeed later; a deadline that was too short would be so again."""
    known = Reason.__members__.get(failure.reason)
    return known is not None and known.retryable and failure.reason != Reason.DEADLINE_EXCEEDED


def _token(job: Job) -> str | None:
    path = job.model.token_file
    if path is None:
        return None
    try:
        return path.read_text("utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        raise error(Reason.INVALID_VALUE, f"{path} contains no token", "token_file") from None
