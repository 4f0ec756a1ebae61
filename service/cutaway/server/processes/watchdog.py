"""Kills a process group when its owner has ended. Run by its file name; see `process_group.py`.

Usage: ``python watchdog.py PROCESS_GROUP DIRECTORY...``, with a pipe from the owner as standard input. The owner never
writes to the pipe; the kernel closes it when the owner ends, even by SIGKILL. (Linux's parent-death signal would come
as soon as the *thread* that started the group ends.)
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress


def main(group: str, *directories: str) -> None:
    """Waits until the owner has ended, then kills the process group and deletes the directories."""
    sys.stdin.buffer.read()
    with suppress(ProcessLookupError):
        os.killpg(int(group), signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
