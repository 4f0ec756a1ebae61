"""What the gateway tells observers of a reply: the time of each stage, and the verdicts of checks. It comes beside the
serialised response, which the gateway does not read."""

from __future__ import annotations

from typing import NamedTuple

from cutaway.results import Verdict
from cutaway.v1 import worker_pb2
from cutaway.wire.enums import VERDICTS


class CheckOutcome(NamedTuple):
    """The outcome of one check: Captum's class name of the method, and the verdict."""

    method: str
    verdict: Verdict


class ReplySummary(NamedTuple):
    """What a reply says of its computation.

    Attributes:
        stages: the time of each stage that ran (``queue``, ``forward``, ...), in milliseconds.
        checks: the outcomes of checks, in the order of the reply.
    """

    stages: dict[str, float]
    checks: tuple[CheckOutcome, ...] = ()


def summarize(reply: worker_pb2.WorkerReply) -> ReplySummary:
    """Returns the summary of a reply whose timings are complete."""
    stages = {field.name.removesuffix("_ms"): value for field, value in reply.timings.ListFields()}
    checks = (CheckOutcome(check.method, VERDICTS.decode(check.verdict)) for check in reply.checks)
    return ReplySummary(stages, tuple(checks))
