"""How pytest-xdist shares the test files among its processes: a file as a whole, and those that take longest first.

Handed out by their number of tests, as xdist does by itself, the files that start servers would come last, because they
have few tests; then one core works while the others wait.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ONE_SERVER = (
    "test_cookbook",
    "test_end_to_end",
    "test_service",
    "test_mixed_requests",
    "test_serve",
    "test_token_sums",
)
"""Files whose tests call the session's `cutaway serve`: one process runs them all, so that it is started once."""

LONGEST = (
    *ONE_SERVER,
    "test_resume",
    "test_process_death",
    "test_hangs",
    "test_observability",
    "test_reload",
    "test_install",
    "test_replicas",
    "test_graph_memory",
    "test_plots",
    "test_report",
    "test_tls",
    "test_bench",
    "test_server_process",
    "test_batching",
    "test_ray",
    "test_jobs",
    "test_cli",
    "test_streams",
    "test_tracing",
    "test_cli_errors",
    "test_zarr",
    "test_progress",
    "test_cli_inspect",
    "test_method_matrix",
    "test_sources",
    "test_wire",
    "test_torchserve_tokens",
    "test_surrogates",
    "test_architectures",
    "test_fuzz",
    "test_shared_passes",
    "test_pass_count",
    "test_examples",
    "test_row_verdicts",
    "test_open_ports",
)
"""Files that take more than ten seconds, the longest first. The others come behind them, by their number of tests."""


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist's classes are untyped
    """Hands out the files of `ONE_SERVER` as one piece of work, and every other file as one."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        return "one server" if module in ONE_SERVER else module


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests with the files that take longest first, each file's tests in their order."""
    sizes: dict[str, int] = {}
    for item in items:
        sizes[_module(item.nodeid)] = sizes.get(_module(item.nodeid), 0) + 1
    return sorted(items, key=lambda item: (_rank(_module(item.nodeid)), -sizes[_module(item.nodeid)]))


def scheduler(config: Any, log: Any) -> LongestFirst | None:
    """Returns the scheduler for ``--dist loadscope``; None leaves every other choice to xdist."""
    if config.getvalue("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


def _module(nodeid: str) -> str:
    return PurePath(nodeid.partition("::")[0]).stem


def _rank(module: str) -> int:
    return LONGEST.index(module) if module in LONGEST else len(LONGEST)
