"""What a worker finds out about its model while nobody calls, and where it keeps that."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks

import cutaway as ca
from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import Point
from cutaway.contract.results import Verdict
from cutaway.engine.hooks.axes import axes_json, read_axes
from cutaway.engine.hooks.hook_site import RowAxes
from cutaway.engine.model.proofs import Proofs
from cutaway.server.archive import reader
from cutaway.server.worker import model_threads
from cutaway.server.worker.proofs import ProofFile
from cutaway.server.worker.worker import Worker
from cutaway.server.worker_protocol import WORKERS
from tests.support.serving import package
from tests.support.waiting import PATIENCE_S

ADAPTER = '''
import os
import threading
import torch
from torch import nn
from cutaway.adapters import Adapter, InputSpec

class Step(nn.Module):
    """Waits on its way, if it is told to."""
    begun, go, waits, runs = threading.Event(), threading.Event(), False, 0

    def forward(self, x):
        self.runs += 1
        if self.waits:
            self.begun.set()
            self.go.wait()
        return torch.tanh(x)

class Net(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 4)),)

    def build(self):
        torch.manual_seed(int(os.environ["NET_SEED"]))
        self.ran = 0
        return nn.Sequential(nn.Linear(4, 8), Step(), nn.Linear(8, 8), Step(), nn.Linear(8, 3))

    def forward(self, model, inputs):
        self.ran += 1
        return model(inputs["x"])

    def example(self):
        return {"x": torch.linspace(-1, 1, 4)[None]}
'''

Load: TypeAlias = Callable[..., Worker]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Packages the adapter, and loads it as a worker that keeps its proofs in ``proofs``; the memory of the process."""
    monkeypatch.delenv(WORKERS, raising=False)
    monkeypatch.setenv("CUTAWAY_IDLE_TESTS_S", "120")
    (tmp_path / "proofs").mkdir()

    def load(proofs: Path = tmp_path / "proofs", seed: int = 0, more: str = "") -> Worker:
        adapter = tmp_path / "net_adapter.py"
        adapter.write_text(ADAPTER + more)
        monkeypatch.setenv("NET_SEED", str(seed))
        archive, directory = package(tmp_path, "net", f"{adapter}:Net"), tmp_path / "unpacked"
        reader.unpack(archive, directory)
        return Worker.load(directory, device="cpu", proofs_dir=proofs)

    return load


def rest(worker: Worker) -> None:
    """Nobody calls for as long as there is something to test."""
    assert worker.idle is not None
    while worker.idle.run(lambda: False) is not None:
        pass


def run(worker: Worker, **asked: Any) -> ca.InspectResult:
    """A request with inputs that are not the example."""
    inputs = {"x": torch.randn(1, 4, generator=torch.Generator().manual_seed(3)).numpy()}
    return worker.inspect(ca.InspectRequest("net", tensors=inputs, **asked))


def ask(worker: Worker, asked: Any = None) -> ca.InspectResult:
    """One explanation."""
    return run(worker, attributions=(asked or ca.Saliency(),))


def verdict(result: ca.InspectResult) -> Verdict:
    """Of the comparison with raw hooks."""
    return result.attributions[0].checks[0].verdict


def kept(directory: Path) -> list[Any]:
    """What the files of proofs hold."""
    return [json.loads(path.read_bytes()) for path in sorted(directory.glob("*.json"))]


QUESTIONS = (ca.Saliency(), ca.IntegratedGradients(n_steps=8), ca.LayerGradCam(layer="2"))


def test_no_test_is_left_for_the_first_caller(load: Load) -> None:
    """Before, the caller waits for tests, and the reply says how long."""
    assert ask(load()).timings.proof_ms > 0
    worker = load()
    rest(worker)
    answers = [ask(worker, asked) for asked in QUESTIONS]
    assert [(answer.timings.proof_ms, verdict(answer)) for answer in answers] == [(0, Verdict.AGREES)] * 3


def test_the_next_worker_proves_nothing_again(load: Load, tmp_path: Path) -> None:
    """It is ready without a pass, and its first callers wait for no test; of the rehearsals, one warms the process."""
    first = load()
    rest(first)
    loaded: Any = load()
    assert loaded._adapter.ran == 0
    assert [ask(loaded, asked).timings.proof_ms for asked in QUESTIONS] == [0, 0, 0]
    assert len(kept(tmp_path / "proofs")) == 1
    second, before = load(), kept(tmp_path / "proofs")
    rest(second)
    adapters: list[Any] = [first._adapter, second._adapter]
    assert 0 < adapters[1].ran < adapters[0].ran / 20
    assert kept(tmp_path / "proofs") == before


CAPTURES = ([ca.Capture("0"), ca.Capture("2")], [ca.Capture("4")])


def test_the_first_capture_takes_one_pass(load: Load) -> None:
    """A worker looks for the rows in all modules as it loads, and the next one knows."""
    for _ in range(2):
        worker: Any = load()
        loaded = worker._adapter.ran
        assert [run(worker, captures=captures).timings.proof_ms for captures in CAPTURES] == [0, 0]
        assert worker._adapter.ran == loaded + 2
        rest(worker)
    assert loaded == 0


def test_without_an_example_the_first_caller_waits() -> None:
    """For passes that look at all modules, and the reply says how long; a capture of another module takes none."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    worker, input = Worker.of(net, "net"), np.ones((1, 4), np.float32)
    asked = (ca.InspectRequest("net", tensors={"input": input}, captures=(ca.Capture(name),)) for name in "012")
    assert [worker.inspect(each).timings.proof_ms > 0 for each in asked] == [True, False, False]


@pytest.mark.parametrize("other", [{"seed": 1}, {"more": "\n# another line"}], ids=["weights", "code"])
def test_proofs_are_about_one_model(load: Load, tmp_path: Path, other: dict[str, Any]) -> None:
    """Other weights, or another letter in its code, and everything is proven anew."""
    rest(load())
    changed = load(**other)
    assert ask(changed).timings.proof_ms > 0
    rest(changed)
    assert len(kept(tmp_path / "proofs")) == 2


def test_proofs_are_about_what_is_imported(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another line in a module that is imported from its sources, another release of a package, or the same release
    with other files, and none of them is read."""
    sources, package = tmp_path / "sources", tmp_path / "packages" / "net_tools-1.0.dist-info"
    (sources / "of_net.egg-info").mkdir(parents=True)  # as an installation for development leaves
    package.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(sources), str(package.parent), *sys.path])
    (sources / "of_net.py").touch()

    def digest() -> str:
        loaded: Any = load(more="\nimport of_net")
        return str(loaded.idle._file._digest)

    found = [digest()]
    assert digest() == found[0]
    (sources / "of_net.py").write_text("SCALE = 2\n")
    found.append(digest())
    (package / "RECORD").write_text("net_tools.py,sha256=0,1\n")
    found.append(digest())
    package.rename(package.with_name("net_tools-1.1.dist-info"))
    found.append(digest())
    assert len({*found}) == len(found)


@pytest.mark.parametrize(
    "content",
    ["", "{", "null", "[]", "{}", "\udcff", '{"of": 1, "sound": SOUND, "faulty": [], "axes": {}}',
     '{"of": OF, "sound": [1], "faulty": [], "axes": {}}', '{"of": OF, "sound": {}, "faulty": [], "axes": {}}',
     '{"of": "another", "sound": SOUND, "faulty": [], "axes": {}}', '{"of": OF, "sound": SOUND, "faulty": []}',
     '{"of": OF, "sound": SOUND, "faulty": [], "axes": []}'],
)  # fmt: skip
def test_a_file_that_is_not_ours_is_ignored(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, nothing of it counts as proven, and the file is written anew."""
    file, proofs = ProofFile(tmp_path, "0123"), Proofs()
    proofs.keep("a test", sound=True)
    file.update(proofs)
    (whole,), (path,) = kept(tmp_path), tmp_path.glob("*.json")
    assert whole["sound"] == ["'a test'"]
    text = content.replace("OF", json.dumps(whole["of"])).replace("SOUND", json.dumps(whole["sound"]))
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    read = Proofs()
    file.add_to(read)
    assert not read.sound
    assert f"{path} is ignored, and tests of the model run again" in caplog.text
    file.update(proofs)
    assert kept(tmp_path) == [whole]


@pytest.mark.parametrize("kept", [5, {}, {"outputs": {}, "sites": [[[["nowhere", "", 0, 0]], ["a"]]], "channels": []}])
def test_axes_that_cannot_be_read_are_looked_for_again(kept: Any) -> None:
    """They are unknown, as in a new process."""
    assert read_axes(kept) == RowAxes()


def test_axes_are_read_as_they_were_kept() -> None:
    """But for sites that did not run: they are looked at again."""
    places: dict[Any, int | None] = {(Point.INPUT, "", 0): 1, (Point.OUTPUT, "[1][0]", 2): None}
    known = RowAxes({"b": places, "a": dict(places), "c": {}}, {"output": 0, "all": None}, {"a", "b", "c"})
    known.channels = {("a", None): {"": 1}, ("b", -1): {"[0]": 2}}
    more: Any = {**known.channels, ("c", 1): error(Reason.METHOD_INAPPLICABLE, "")}
    seen = replace(known, tested={"a", "b", "c", "never ran"}, channels=more)
    assert read_axes(json.loads(json.dumps(axes_json(seen)))) == known


def test_what_several_workers_know_is_joined(tmp_path: Path) -> None:
    """A fault that one has found withdraws the proofs of all, for ever."""
    file, one, other = ProofFile(tmp_path, "0123"), Proofs(), Proofs()
    one.keep("a", sound=True)
    file.update(one)
    other.keep("b", sound=True)
    file.update(other)
    file.update(one)
    assert one.sound == other.sound == {"'a'", "'b'"}
    other.keep("a", sound=False)
    file.update(other)
    file.update(one)
    one.keep("a", sound=True)
    assert one.sound == other.sound == {"'b'"}
    assert {*kept(tmp_path)[0]["sound"]} == {"'b'"}


def test_where_nothing_can_be_written(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs are kept beside the workers' sockets, or else in the process."""
    blocked = tmp_path / "a file" / "proofs"
    (tmp_path / "a file").touch()
    worker = load(blocked)
    rest(worker)
    assert ask(worker).timings.proof_ms == 0 < ask(load(blocked)).timings.proof_ms
    monkeypatch.setenv(WORKERS, str(tmp_path))
    rest(load(blocked))
    assert ask(load(blocked)).timings.proof_ms == 0


def test_one_worker_at_a_time_tests(load: Load, tmp_path: Path) -> None:
    """While another one has its turn, a worker waits; then it takes over what the other has proven."""
    worker: Any = load()
    before = worker._adapter.ran
    with (tmp_path / "proofs" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert worker.idle.run(lambda: False) > 0
        assert worker._adapter.ran == before
    rest(load())
    rest(worker)
    assert worker._adapter.ran < before + 10


def test_a_process_that_a_model_forks_keeps_no_turn(tmp_path: Path) -> None:
    """It has the lock's file open, as long as it lives."""
    file = ProofFile(tmp_path, "0123")
    with file.turn() as has_turn:
        assert has_turn
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        child.start()
    with file.turn() as has_turn:
        assert has_turn
    child.kill()


def test_what_ended_a_worker_is_not_tried_again(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's next worker leaves that question to callers, and asks the others."""
    monkeypatch.setenv(WORKERS, str(tmp_path))
    (tmp_path / "begun net 1.0 0").touch()
    worker = load()
    rest(worker)
    assert sorted(path.name for path in tmp_path.glob("begun*")) == ["begun net 1.0 0"]
    known = " ".join(kept(tmp_path / "proofs")[0]["sound"])
    assert "requests.attributions.IntegratedGradients" in known
    assert "requests.attributions.Saliency, ''), (('x', (1, 4))" not in known


def test_a_caller_waits_for_no_test(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that runs ends behind the module that it is in, and again for each caller, and leaves no hook; the worker
    counts as late only if it does not. Afterwards the tests go on to their end."""
    monkeypatch.setattr(model_threads, "_QUIET_S", 0.0)
    worker = load()
    steps: list[Any] = [worker._model.module.get_submodule(name) for name in ("1", "3")]
    ended: list[tuple[int, int]] = []
    steps[0].waits = True
    worker.begin_idle_tests()

    def look() -> tuple[int, int]:
        steps[0].go.clear()  # before the test goes on: else it would not wait there
        return steps[1].runs, len(_global_forward_hooks)

    for _ in range(2):
        assert steps[0].begun.wait(PATIENCE_S)
        before = steps[1].runs
        assert worker.threads.busy_until == model_threads.IDLE
        answer = worker.threads.submit(look)
        assert time.time() < worker.threads.busy_until < time.time() + PATIENCE_S
        steps[0].begun.clear()
        steps[0].go.set()
        runs, hooks = answer.result(PATIENCE_S)
        ended.append((runs - before, hooks))
    assert ended == [(0, 0)] * 2
    steps[0].waits = False
    steps[0].go.set()
    worker.threads.close(PATIENCE_S)
    rest(worker)
    assert ask(worker).timings.proof_ms == 0


@pytest.mark.parametrize("example", ["return None", "raise OSError('the disk is gone')"])
def test_a_model_without_an_example(load: Load, example: str) -> None:
    """Nothing is tested, and nothing fails."""
    worker = load(more=f"\n    def example(self):\n        {example}\n")
    rest(worker)
    assert verdict(ask(worker)) is Verdict.AGREES


def test_tests_that_do_not_fit_end(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """Where memory is short, no more of them run; callers are answered as before, and the log says no word of alarm."""
    short = "if len(inputs['x']) > 1 and self.rests: raise MemoryError"
    worker: Any = load(
        more=f"""
    rests = False
    def forward(self, model, inputs):
        self.ran += 1
        {short}
        return model(inputs["x"])
"""
    )
    worker._adapter.rests = True
    rest(worker)
    before = worker._adapter.ran
    rest(worker)
    assert worker._adapter.ran == before
    worker._adapter.rests = False
    assert verdict(ask(worker)) is Verdict.AGREES
    assert not caplog.records


def test_jobs_have_no_idle_time(load: Load, tmp_path: Path) -> None:
    """Their only caller is there at once."""
    load()
    assert Worker.load(tmp_path / "unpacked", device="cpu", batches_calls=False).idle is None


def test_a_thread_ends_in_the_middle_of_tests(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops does not wait for them."""
    monkeypatch.setattr(model_threads, "_QUIET_S", 0.0)
    worker = load()
    step: Any = worker._model.module.get_submodule("1")
    step.waits = True
    worker.begin_idle_tests()
    assert step.begun.wait(PATIENCE_S)
    closing = threading.Thread(target=worker.threads.close, args=(PATIENCE_S,))
    closing.start()
    step.go.set()
    closing.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in worker.threads._threads)
