"""Runs the tests of a model in the idle time of its worker, and keeps beside the archives what they have proven.

A test runs again, on a caller's clock, for inputs of another kind than the adapter's example. What is kept is bound to
the weights, the archive, every installed package and every other source file: a test of another model, or of other
code, is never taken for one of this.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cutaway.contract.errors import DeadlineExceeded
from cutaway.contract.json_text import read_json
from cutaway.engine.hooks.observe import CancelledPasses
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.proofs import Proofs
from cutaway.engine.model.session import Cancellation, is_out_of_memory
from cutaway.engine.rehearsal import Question, rehearsals, rehearse
from cutaway.server.archive.reader import MODEL_CONFIG, TORCHSERVE_MANIFEST, ArchiveManifest, sha256
from cutaway.server.memory import return_memory
from cutaway.server.worker_protocol import WORKERS

if TYPE_CHECKING:
    from cutaway.server.worker.worker import Worker

log = logging.getLogger(__name__)

# The file of proofs.


class ProofFile:
    """The file with the proofs of one model.

    Args:
        directory: where the files of all models are.
        digest: of all that the proofs are about.
    """

    def __init__(self, directory: Path, digest: str) -> None:
        self._path, self._digest = directory / f"{digest[:32]}.json", digest
        self._lock = directory / "lock"

    def add_to(self, proofs: Proofs) -> dict[str, Any]:
        """Adds what the file has to ``proofs``, and returns it; nothing, where the file is damaged, or not ours."""
        kept = self._read()
        proofs.axes = {**kept["axes"], **proofs.axes}
        proofs.faulty |= {*kept["faulty"]}
        proofs.sound = (proofs.sound | {*kept["sound"]}) - proofs.faulty
        return kept

    def update(self, proofs: Proofs) -> None:
        """Adds what the file has to ``proofs``, and writes what it lacks; the block of `turn` surrounds it."""
        before = self.add_to(proofs)
        now = {"sound": sorted(proofs.sound), "faulty": sorted(proofs.faulty), "axes": proofs.axes}
        if now == before:
            return
        new = self._path.with_suffix(f".{os.getpid()}")
        try:
            new.write_text(json.dumps({"of": self._digest, **now}))
            new.replace(self._path)
        finally:
            new.unlink(missing_ok=True)

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Holds the turn while the block runs, and yields whether it could be had: one worker at a time runs tests, so
        that others have the cores, and no two make the same test."""
        with self._lock.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a process that the model forked meanwhile has the file open too

    def _read(self) -> dict[str, Any]:
        values: dict[str, Any] = {"sound": [], "faulty": [], "axes": {}}
        try:
            read = read_json(self._path.read_bytes())
            is_ours = read["of"] == self._digest and isinstance(read["axes"], dict)
            if not is_ours or not all(isinstance(key, str) for key in read["sound"] + read["faulty"]):
                raise ValueError("it is about something else")
            values = {kind: read[kind] for kind in values}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError) as failure:
            log.warning("%s is ignored, and tests of the model run again: %s", self._path, failure)
        return values


def proof_file(
    directory: Path | None, model: InspectedModel, manifest: ArchiveManifest, unpacked: Path
) -> ProofFile | None:
    """Returns the file of a model in ``directory``, or, if that cannot be written, beside the workers' sockets, until
    the server ends; None where there are none.

    Args:
        directory: the operator's directory; None for none.
        model: the model.
        manifest: of its archive.
        unpacked: where its archive is unpacked.
    """
    sockets = os.environ.get(WORKERS)
    for place in [*([directory] if directory else []), *([Path(sockets) / "proofs"] if sockets else [])]:
        with suppress(OSError):
            place.mkdir(exist_ok=True)
            if os.access(place, os.W_OK | os.X_OK):
                return ProofFile(place, _digest(model, manifest, unpacked))
    return None


def _digest(model: InspectedModel, manifest: ArchiveManifest, unpacked: Path) -> str:
    """Returns a digest of what a proof depends on: weights, archive, packages, sources outside of them, machine."""
    paths = [path for path in map(Path, sys.path) if path.is_dir()]
    packages = [each for path in paths for each in path.glob("*-info") if each.suffix in (".dist-info", ".egg-info")]
    versions = [f"{each.name} {_sha256(each / 'RECORD')}" for each in packages]
    parts = [model.weights_sha256, model.device.type, sys.version, platform.machine(), *sorted({*versions})]
    parts += [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    left_out = {manifest.weights, MODEL_CONFIG, TORCHSERVE_MANIFEST}  # known by its digest; not about the model
    files = {str(path.relative_to(unpacked)): path for path in unpacked.rglob("*") if "__pycache__" not in path.parts}
    parts += [f"{name} {_sha256(path)}" for name, path in sorted(files.items()) if name not in left_out]
    # Sources that are installed for development have .egg-info beside them, and change without a new version.
    installed = {str(each.parent) for each in packages if each.suffix == ".dist-info"}
    known = [*installed, *map(sysconfig.get_path, ("stdlib", "platstdlib"))]
    parts += sorted(map(_sha256, _sources_outside((*known, str(unpacked)))))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _sources_outside(known: tuple[str, ...]) -> Iterator[Path]:
    """Yields the files of modules that are imported from elsewhere than ``known`` directories; of packages all files,
    because more may be imported later."""
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None) or ""
        if file and "." not in name and not file.startswith(known):
            path = Path(file)
            yield from path.parent.rglob("*.py") if path.name == "__init__.py" else [path]


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return sha256(file)


# Idle time.

_PAUSE_S = 1.0


class IdleProofs:
    """The tests of one model that run while nobody calls its worker: one request after the other, in the model's
    thread. A caller ends the one that runs at its next module; it begins again later.

    Args:
        worker: the worker.
        model: its model.
        example: returns the adapter's example.
        cancelled_passes: ends the model's passes.
        file: where proofs are kept; None keeps them in this process only.
        most_s: the time of the processor that they may take, in seconds.
    """

    def __init__(
        self,
        worker: Worker,
        model: InspectedModel,
        example: Callable[[], Inputs | None],
        cancelled_passes: CancelledPasses,
        file: ProofFile | None,
        most_s: float,
    ) -> None:
        self._worker, self._model, self._example = worker, model, example
        self._cancelled_passes, self._file = cancelled_passes, file
        self._left_s = most_s
        self._questions: Iterator[tuple[int, Question]] | None = None
        self._question: tuple[int, Question] | None = None

    def give_way(self) -> None:
        """Ends what runs, if it is a test and a caller waits; safe in any thread."""
        self._cancelled_passes.update()

    def run(self, someone_waits: Callable[[], bool]) -> float | None:
        """Runs some tests in the model's thread; never raises.

        Args:
            someone_waits: returns whether a job has come in the meantime.

        Returns:
            After how many seconds without a job others run; None for never, before the next job.
        """
        try:
            with nullcontext(True) if self._file is None else self._file.turn() as has_turn:
                if not has_turn:
                    return _PAUSE_S
                if self._file is not None:
                    self._file.update(self._model.proofs)
                return 0.0 if self._run_next(someone_waits) else None
        except Exception as failure:
            log.info("%s: its tests in idle time ended: %s", self._worker.name.model, failure, exc_info=True)
            self._left_s = 0.0
            return None

    def _run_next(self, someone_waits: Callable[[], bool]) -> bool:
        """Asks the next question; returns whether there was one."""
        start = time.thread_time()  # not what others take of the machine
        if self._left_s <= 0 or (asked := self._next_question()) is None:
            return False
        number, question = asked
        try:
            with self._begun(number) as ended_a_worker:
                if not ended_a_worker:
                    self._ask(question, someone_waits)
            self._question = None
            return_memory()
        except DeadlineExceeded:  # for a caller
            pass
        except Exception as failure:
            log.info("%s: a test in idle time failed: %s", self._worker.name.model, failure, exc_info=True)
            self._question = None
        finally:
            self._left_s -= time.thread_time() - start
        return True

    def _next_question(self) -> tuple[int, Question] | None:
        """Returns the next test that has not passed yet, here or in another process; None if none is left.

        The first test always runs, since it prepares the process for later requests.
        """
        if self._questions is None:
            example = self._example()
            self._questions = enumerate(rehearsals(self._model, example) if example else ())
        is_known = self._model.proofs.is_sound
        if self._question is None:
            self._question = next((each for each in self._questions if not (each[0] and is_known(each[1].key))), None)
        return self._question

    def _ask(self, question: Question, someone_waits: Callable[[], bool]) -> None:
        worker, model = self._worker, self._model
        if worker.memory is not None:
            model.request_bytes, model.has_more_memory = worker.memory.own, False
        try:
            with self._cancelled_passes.watching():
                rehearse(model, question, Cancellation(hung_up=someone_waits))
        except Exception as failure:
            if is_out_of_memory(failure):
                self._left_s = 0.0
                if not worker.is_sound(ran_out=True) and os.environ.get(WORKERS):
                    os._exit(1)  # another worker takes its place, and does not ask this again
            raise

    @contextmanager
    def _begun(self, number: int) -> Iterator[bool]:
        """Marks test ``number`` as begun while the block runs; yields True if an earlier worker left the mark.

        The test then ended that worker's process, and is not run again: otherwise it would end every new worker.
        """
        sockets = os.environ.get(WORKERS)
        if not sockets:
            yield False
            return
        name = self._worker.name
        mark = Path(sockets) / f"begun {name.model} {name.version} {number}"
        if mark.exists():
            yield True
            return
        mark.touch()
        try:
            yield False
        finally:
            mark.unlink(missing_ok=True)
