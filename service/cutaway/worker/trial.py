"""Loads an archive once, to find out before it is served whether it loads."""

from __future__ import annotations

import sys
from pathlib import Path

from cutaway.archive import reader
from cutaway.worker.worker import Worker
from cutaway.worker_protocol.socket_directory import ScratchDirectory


def load_once(archive: Path) -> None:
    """Loads the model of ``archive`` on the CPU, and runs its example, as a worker does; then forgets it.

    Raises:
        CutawayError: as `Worker.load`.
    """
    with ScratchDirectory() as directory:
        reader.unpack(archive, Path(directory))
        sys.path.insert(0, directory)  # an adapter may import other files of its archive, as in TorchServe's workers
        try:
            Worker.load(Path(directory), device="cpu")
        finally:
            sys.path.remove(directory)
