"""The environment variables that Ray reads when it is imported."""

from __future__ import annotations

import os

_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
}
"""Ray's own processes get minutes to start: Ray waits 30 to 100 seconds by default, and 30 are too few on two busy
cores."""


def prepare() -> None:
    """Sets the variables that are not set; has an effect before Ray is imported."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
