"""Which tests are quick, and how pytest-xdist shares their files among its processes: a file as a whole, and those that
take longest first.

Handed out by their number of tests, as xdist does by itself, the files that start servers would come last, because they
have few tests; then one core works while the others wait.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]

ONE_SERVER = (
    "test_cookbook", "test_end_to_end", "test_service", "test_mixed_requests", "test_serve",
    "test_typescript_client", "test_real_models", "test_same_answers", "test_stored", "test_token_sums",
)  # fmt: skip
"""All files whose tests call the session's `cutaway serve`: one process runs them all, so that it is started once."""

LONGEST = (
    *ONE_SERVER,
    "test_process_death", "test_examples_run", "test_hangs", "test_connections", "test_insides", "test_report",
    "test_plain_captum", "test_reload", "test_replicas", "test_typing", "test_jobs", "test_observability",
    "test_captum_gone_wrong", "test_shell", "test_views", "test_verdicts_by_row", "test_every_method", "test_doubts",
    "test_streams", "test_readme", "test_targets", "test_unusual_models", "test_failing_checks", "test_healthy_models",
    "test_abandoned_files", "test_passes_that_fit", "test_tracing", "test_unauthenticated", "test_open_ports",
    "test_shared_passes", "test_rehearsal", "test_install", "test_examples", "test_batches_of_other_sizes",
    "test_surrogates", "test_pass_count", "test_plots", "test_cli_streams", "test_wrong_gradients", "test_verdicts",
    "test_custom_functions", "test_overlooked_by_captum", "test_site", "test_openapi", "test_torchserve_tokens",
    "test_sources", "test_edits", "test_places", "test_method_matrix", "test_server_process", "test_stream_retry",
    "test_progress", "test_resume", "test_architecture", "test_cli", "test_fault_catalogue", "test_tls",
    "test_batching", "test_graph_memory", "test_requirements", "test_wire", "test_fuzz", "test_first_request",
    "test_node_client", "test_bench", "test_audit",
)  # fmt: skip
"""Files that take more than four seconds, the longest first; some take minutes where slow tests run too. The others
come behind them, by their number of tests."""


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist's classes are untyped
    """Hands out the files of `ONE_SERVER` as one piece of work, and every other file as one."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        return "one server" if module in ONE_SERVER else module


SHARE, LEAST, MOST = 12, 2, 10
"""Of so many rows of a table one is quick, but at least so many of a table and at most so many."""

TABLES = ("unit", "integration")
"""The folders whose tables are long."""


def mark_most_rows_slow(items: Iterable[pytest.Item]) -> None:
    """Marks most rows of large tables slow; which ones follows from their names alone."""
    tables = defaultdict(list)
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in TABLES and not item.get_closest_marker("slow"):
            tables[item.nodeid.partition("[")[0]].append(item)
    for rows in tables.values():
        rows.sort(key=lambda row: zlib.crc32(row.nodeid.encode()))
        for row in rows[min(MOST, max(LEAST, len(rows) // SHARE)) :]:
            row.add_marker(pytest.mark.slow)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests with the files that take longest first, each file's tests in their order."""
    sizes: dict[str, int] = {}
    for item in items:
        sizes[_module(item.nodeid)] = sizes.get(_module(item.nodeid), 0) + 1
    return sorted(items, key=lambda item: (_rank(_module(item.nodeid)), -sizes[_module(item.nodeid)], str(item.path)))


def rotated(tests: Path, share: float) -> list[str]:
    """Returns all files of tests below a folder, beginning with that at ``share`` of them."""
    files = sorted(map(str, tests.rglob("test_*.py")))
    first = int(share * len(files))
    return files[first:] + files[:first]


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
