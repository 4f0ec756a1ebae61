"""Loads an archive once, to find out before it is served whether it loads."""

from __future__ import annotations

import sys
from pathlib import Path

from cutaway.archive import reader
from cutaway.errors import CutawayError, Reason, error
from cutaway.worker.worker import Worker
from cutaway.worker_protocol.socket_directory import ScratchDirectory


def load_once(archive: Path) -> None:
    """Loads the model of ``archive`` on the CPU, as a worker does, and runs its example; then forgets it.

    Raises:
        CutawayError: as `Worker.load`; ``ADAPTER_INVALID`` too, if the model cannot run the example.
    """
    with ScratchDirectory() as directory:
        reader.unpack(archive, Path(directory))
        sys.path.insert(0, directory)  # an adapter may import other files of its archive, as in TorchServe's workers
        try:
            worker = Worker.load(Path(directory), device="cpu", batches_calls=False)
            _run_example(worker)
        finally:
            sys.path.remove(directory)


def _run_example(worker: Worker) -> None:
    try:
        worker.describe()
    except Exception as failure:  # the adapter's example, or the model, may raise anything
        what = f"{type(failure).__name__}: {failure}" if not isinstance(failure, CutawayError) else failure.message
        remedy = "change the adapter's inputs or its example()"
        raise error(Reason.ADAPTER_INVALID, f"the example cannot be run: {what}; {remedy}", "adapter") from failure
