"""How many workers a model should have: a policy of Ray Serve, which runs it in its controller."""

from __future__ import annotations

import math
from typing import Any

CALLS, WAITING = "calls", "waiting"
"""What replicas report: the number of their calls under way, and of those that wait in the gateway."""


def workers_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Returns the number of workers for the calls of a `ray.serve.config.AutoscalingContext`; its limits and delays are
    applied to it by Serve. All replicas report the same waiting calls, some of them late."""
    reported = context.aggregated_metrics or {}
    calls = sum(reported.get(CALLS, {}).values()) + max(reported.get(WAITING, {}).values(), default=0)
    return math.ceil(calls / context.config.target_ongoing_requests), {}
