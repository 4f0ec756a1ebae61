"""Ends a process group whose owner is gone. Run by its file name; see `processes.py`.

Usage: ``python watchdog.py PROCESS_GROUP DIRECTORY``, with a pipe from the owner as standard input. The owner
never writes to it, so all there is to read is its end: however the owner died, even by SIGKILL, the kernel
closed the pipe. (Linux's parent-death signal would come as soon as the *thread* that started the group ends.)
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress


def main(group: str, directory: str) -> None:
    """Wait until the owner is gone, then kill the process group and delete the directory."""
    sys.stdin.buffer.read()
    with suppress(ProcessLookupError):
        os.killpg(int(group), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
