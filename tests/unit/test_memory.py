"""How much memory a process may use, in control groups too."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from cutaway.server import memory

GIBIBYTE = 1 << 30


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process's control group for memory, in an empty tree."""
    if not psutil.LINUX:
        pytest.skip("only Linux has control groups")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    directories = [tmp_path / kind / path.lstrip("/") for _, kind, path in lines if kind in ("", "memory")]
    directories[0].mkdir(parents=True, exist_ok=True)
    return directories[0]


@pytest.mark.parametrize("name", ["memory.max", "memory.limit_in_bytes"])
def test_the_smallest_limit_of_all_groups_counts(group: Path, tmp_path: Path, name: str) -> None:
    """Of versions 1 and 2, of the process's own group or one around it; "max" is no limit."""
    assert memory.usable_bytes() == psutil.virtual_memory().total
    (group / name).write_text("max\n")
    assert memory.usable_bytes() == psutil.virtual_memory().total
    (group / name).write_text(f"{GIBIBYTE}\n")
    assert memory.usable_bytes() == GIBIBYTE


def test_shares_fit_together(group: Path) -> None:
    """Workers, and requests under way, have less than there is; a small machine leaves a little to each."""
    (group / "memory.max").write_text(str(8 * GIBIBYTE))
    for workers in (1, 2, 4):
        assert workers * (memory.share_of_worker(workers) + (GIBIBYTE >> 1)) <= 0.6 * 8 * GIBIBYTE
    assert memory.share_of_worker(1000) == GIBIBYTE >> 2
    assert memory.share_of_requests(1) == 8 * GIBIBYTE // 24
    assert memory.share_of_requests(GIBIBYTE) == GIBIBYTE
