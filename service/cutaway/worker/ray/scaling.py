"""How many workers a model should have: a policy of Ray Serve, which runs it in its controller."""

from __future__ import annotations

import math
from typing import Any

CALLS = "calls"
"""What replicas report: the number of their calls under way."""


def workers_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Returns the number of workers for the calls of a `ray.serve.config.AutoscalingContext`; its limits and delays are
    applied to it by Serve."""
    calls = (context.aggregated_metrics or {}).get("calls", {})
    return math.ceil(sum(calls.values()) / context.config.target_ongoing_requests), {}
