"""A process that leads a group, and the others of it."""

from __future__ import annotations

import subprocess
import sys

import psutil

from cutaway.server.processes.process_group import ProcessGroup
from tests.support.waiting import PATIENCE_S


def test_a_look_at_a_leader_that_has_ended_waits_for_nobody() -> None:
    """Others of the group live until they are killed, which may take long and blocks: no look does it."""
    command = [sys.executable, "-c", "import os, time\nif not os.fork(): time.sleep(600)"]
    leader = subprocess.Popen(command, start_new_session=True)
    group = ProcessGroup(leader)
    leader.wait(PATIENCE_S)
    assert group.poll() == 0
    assert [*group._members()]
    group.kill()
    assert not [*group._members()]
    assert not psutil.pid_exists(group._watchdog.pid)
