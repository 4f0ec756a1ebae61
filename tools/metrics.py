"""The Prometheus metrics, for docs/metrics.md, from what a gateway and a job expose after one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric

from cutaway.contract.results import ArchiveState, ModelName, UnservedArchive, Verdict
from cutaway.contract.wire.results import CheckOutcome, ReplySummary
from cutaway.jobs import Summary, progress
from cutaway.server.batching import Answers, Batcher
from cutaway.server.observability.call_watch import CallRecord
from cutaway.server.observability.prometheus import Metrics
from cutaway.v1 import worker_pb2


def gateway_table() -> Iterator[str]:
    """Yields the lines of the table of a gateway's metrics."""
    name = ModelName("digits", "1.0")
    batcher = Batcher[bytes](_send, workers=int, sends_ahead=False, max_calls=1, max_bytes=1, max_pending=1)
    metrics = Metrics({name: batcher})
    call = CallRecord("Inspect", "", "", model=name)
    call.summary = ReplySummary({"forward": 1.0}, (CheckOutcome("Saliency", Verdict.AGREES),))
    metrics.call_started(call)
    metrics.call_ended(call)
    metrics.set_serving({name: True}, [UnservedArchive("m-1.0.mar", "m", "1.0", ArchiveState.FAILED, "")])
    return _table(metrics.registry)


def job_table() -> Iterator[str]:
    """Yields the lines of the table of a job's metrics."""
    metrics = progress.JobMetrics()
    metrics.on_shard(Summary(Path(), verdicts={"saliency": {Verdict.AGREES: 1}}))
    return _table(metrics.registry)


def _send(calls: Sequence[worker_pb2.WorkerCall], answers: Answers[bytes], waiting: int) -> None:
    """Stands for a worker; no call is queued here."""
    raise NotImplementedError


def _table(registry: CollectorRegistry) -> Iterator[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for family in registry.collect():
        if family.name.startswith("process_"):
            continue  # of prometheus_client's own collector, on Linux only
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in _labels(family))
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _labels(family: Metric) -> list[str]:
    names = dict.fromkeys(label for sample in family.samples for label in sample.labels)
    return [name for name in names if name != "le"]
