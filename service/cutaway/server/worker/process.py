"""A worker in a process of its own: limited in memory, and called by the gateway over its socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from cutaway.adapter_modules import plain_names, use_plain_names
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import ModelName
from cutaway.contract.wire.chunks import Piece
from cutaway.server import load_records
from cutaway.server.archive import reader
from cutaway.server.child_processes import give_children_default_signals
from cutaway.server.memory import MemoryPool, RequestMemory, keep_modules, return_memory
from cutaway.server.worker.call import Call
from cutaway.server.worker.loading import device_of, request_memory
from cutaway.server.worker.server import WorkerServer
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import POOL_BYTES, POOL_IN, WORKERS, ScratchDirectory


class WorkerProcess:
    """The worker of this process, which TorchServe or the gateway has started.

    Args:
        worker: the worker.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        if directory := os.environ.get(WORKERS):
            self._server = WorkerServer(worker, Path(directory) / str(os.getpid()))
        worker.begin_idle_tests()

    @classmethod
    def start(cls, directory: Path, name: ModelName, *, workers: int, gpu: int | None) -> WorkerProcess:
        """Loads a model as `load` does; logs in one line why it cannot be loaded.

        Raises:
            SystemExit: the model cannot be loaded, for a reason that the line says in full.
        """
        give_children_default_signals()
        sockets = os.environ.get(WORKERS, "")
        with load_records.recorded(Path(sockets), name) if sockets else nullcontext():
            try:
                worker = load(directory, workers=workers, gpu=gpu)
            except Exception as failure:
                why = load_failure(failure)
                if sockets:
                    words = load_records.last_words(Path(sockets), name)
                    if words and isinstance(failure.__cause__, SystemExit):  # argparse prints what is wrong
                        why += f"; it printed: {words}"
                    load_records.note(Path(sockets), name, load_records.FAILED, why)
                print(f"cutaway cannot load {name.model} {name.version}: {why}", file=sys.stderr)
                if isinstance(failure, CutawayError):
                    raise SystemExit(1) from None
                raise
        return cls(worker)

    def answer(self, calls: Sequence[Mapping[str, bytes]]) -> list[bytes]:
        """Runs calls that came as TorchServe's parts; returns their replies, `cutaway.v1.WorkerReply`."""
        parsed = [Call.of_parts(parts) for parts in calls]
        return self._worker.threads.submit(lambda: list(self._worker.answer(parsed))).result() if parsed else []

    def stream(self, parts: Mapping[str, bytes]) -> Iterator[Piece]:
        """Runs a streamed call that came as TorchServe's parts; returns the pieces of its reply, one at least."""
        return self._worker.stream(Call.of_parts(parts))


def load(directory: Path, *, workers: int, gpu: int | None) -> Worker:
    """Loads the model of an unpacked archive, and limits the memory of its requests; says what fits.

    Args:
        directory: the archive.
        workers: number of workers of this model, which share the cores.
        gpu: the number of the GPU to load it onto; None for the CPU.
    """
    _share_cores(workers)
    use_plain_names(directory)  # the process has no other model
    worker = Worker.load(directory, device=device_of(gpu))
    worker.set_alone()
    if worker.memory is not None:
        worker.memory = RequestMemory(worker.memory.own, _pool())
    elif worker.device.type == "cuda":
        shared = os.environ.get(POOL_IN)
        worker.memory = request_memory(worker.device, Path(shared) if shared else None)
    if worker.memory is not None:
        _tell_what_fits(worker.name, worker.fits())
    if worker.memory is not None and worker.device.type == "cpu":
        return_memory()
        worker.memory.enforce()
    keep_modules()
    return worker


def _tell_what_fits(name: ModelName, what_fits: str) -> None:
    """Tells the gateway, or the log of a worker without one, which requests fit in the memory of this worker."""
    if directory := os.environ.get(WORKERS):
        load_records.note(Path(directory), name, load_records.LOADED, what_fits)
    else:
        print(f"{name.model} {name.version}: {what_fits}", file=sys.stderr)


def _pool() -> MemoryPool | None:
    """Returns the memory that this worker shares with others, if there is any."""
    size, directory = int(os.environ.get(POOL_BYTES, "0")), os.environ.get(POOL_IN)
    return MemoryPool(Path(directory) / "memory", size) if size and directory and sys.platform == "linux" else None


def load_failure(failure: Exception) -> str:
    """Returns the line by which the gateway learns why a model cannot be loaded."""
    kind = "" if isinstance(failure, CutawayError) else f"{type(failure).__name__}: "
    return f"{kind}{' '.join(str(failure).split())}"


def _share_cores(workers: int) -> None:
    """Limits torch to a share of the cores: workers that use all cores slow one another."""
    if "OMP_NUM_THREADS" not in os.environ:  # a setting of the operator wins
        sharing = workers * int(os.environ.get("CUTAWAY_REPLICAS", "1"))
        torch.set_num_threads(max(1, torch.get_num_threads() // sharing))


def load_once(archive: Path, weights: Path | None) -> None:
    """Loads the model of ``archive`` on the CPU and runs its example, to find faults before the archive is served.

    ``weights``: the file that the archive's weights are a copy of; it is read in place of a third copy.

    Raises:
        CutawayError: as `Worker.load`; ``ADAPTER_INVALID`` too, if the model cannot run the example.
    """
    with ScratchDirectory() as directory:
        reader.unpack(archive, Path(directory), weights=weights)
        with _in_archive(Path(directory)):
            _run_example(Worker.load(Path(directory), device="cpu", batches_calls=False))
        if sys.stdout.closed:
            raise error(
                Reason.ADAPTER_INVALID, "its code closes sys.stdout, where others write too: leave it", "adapter"
            )


@contextmanager
def _in_archive(directory: Path) -> Iterator[None]:
    """Enters the directory of an unpacked archive, from which an adapter imports and opens files as in a worker."""
    before = os.open(".", os.O_RDONLY)
    sys.path.insert(0, str(directory))
    try:
        os.chdir(directory)
        with plain_names(directory):
            yield
    finally:
        sys.path.remove(str(directory))
        os.fchdir(before)
        os.close(before)


def _run_example(worker: Worker) -> None:
    try:
        worker.describe()
    except Exception as failure:  # the adapter's example, or the model, may raise anything
        what = f"{type(failure).__name__}: {failure}" if not isinstance(failure, CutawayError) else failure.message
        remedy = "change the adapter's inputs or its example()"
        raise error(Reason.ADAPTER_INVALID, f"the example cannot be run: {what}; {remedy}", "adapter") from failure
