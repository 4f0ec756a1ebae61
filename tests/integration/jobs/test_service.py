"""Jobs that ask a running service: the same values as in this process, and a service that goes away."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, Reason
from cutaway.gateway import serve
from cutaway.jobs import Job, Summary, Watcher, read, run
from cutaway.server.settings import Settings
from tests.support.digits import OPERATIONS
from tests.support.jobs import digits, digits_job, digits_words
from tests.support.rounding import rounding
from tests.support.serving import Server, serving

ROUNDING = rounding(torch.float32, OPERATIONS)


@pytest.fixture(scope="module")
def quick(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model alone, which is quickly served."""
    directory = tmp_path_factory.mktemp("store")
    shutil.copy(store / "digits-1.0.mar", directory)
    return directory


class Slow(nn.Module):
    """Takes its time."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        return x * 2


def asking(store: Path, folder: Path, address: str, **more: object) -> Job:
    """The same job, through the service at ``address``."""
    words = digits_words(store, folder) | {
        "model": {"address": address, "name": "digits"},
        "engine": {"kind": "service", "batch": 8, "in_flight": 3, "patience_s": 60},
    }
    return Job(**words | more)


class AtFirstShard(Watcher):
    """Does something when the first shard is on disk."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do
        self._done = threading.Event()

    def on_shard(self, summary: Summary) -> None:
        if not self._done.is_set():
            self._done.set()
            self._do()


def test_a_service_says_the_same(store: Path, server: Server, tmp_path: Path) -> None:
    """Through a gateway and TorchServe each value is what this process computes, but for rounding."""
    run(digits_job(store, tmp_path / "here"))
    summary = run(asking(store, tmp_path / "there", server.address))
    here, there = read(tmp_path / "here"), read(tmp_path / "there")
    assert summary.rows == 40
    assert list(here) == list(there)
    for name in here:
        if here[name].dtype.kind == "f":
            np.testing.assert_allclose(there[name], here[name], rtol=ROUNDING, atol=ROUNDING, err_msg=name)
        else:
            assert there[name].tolist() == here[name].tolist(), name
    assert here.manifest.weights_sha256 == there.manifest.weights_sha256


@pytest.mark.slow
def test_a_service_that_is_away_is_asked_again(quick: Path, tmp_path: Path) -> None:
    """Where the service comes back in time, nobody notices: every row is there, and none is bad."""
    with serving(quick, tmp_path / "logs", "--engine=embedded") as first:
        job = asking(quick, tmp_path / "out", first.address, data=digits(320))
        stopped = AtFirstShard(lambda: first.process.kill())
        ends: list[Summary | BaseException] = []

        def work() -> None:
            try:
                ends.append(run(job, stopped))
            except BaseException as failure:
                ends.append(failure)

        working = threading.Thread(target=work)
        working.start()
        first.process.wait()
        with serving(quick, tmp_path / "again", "--engine=embedded", "--address", first.address):
            working.join()
    (summary,) = ends
    assert isinstance(summary, Summary), summary
    assert (summary.rows, summary.bad) == (320, 0)
    assert read(tmp_path / "out")["row"].tolist() == list(range(320))


@pytest.mark.slow
def test_a_service_that_stays_away_ends_the_job(quick: Path, tmp_path: Path) -> None:
    """After the patience that the job names it is interrupted, and goes on at whatever address the model is next."""
    engine = {"kind": "service", "batch": 8, "in_flight": 3, "patience_s": 0.5}
    with serving(quick, tmp_path / "logs", "--engine=embedded") as first:
        job = asking(quick, tmp_path / "out", first.address, data=digits(320), engine=engine)
        with pytest.raises(CutawayError, match="run again to continue") as caught:
            run(job, AtFirstShard(lambda: first.process.kill()))
    assert caught.value.reason == Reason.JOB_INTERRUPTED
    there = read(tmp_path / "out").rows
    assert 0 < there < 320
    with serving(quick, tmp_path / "again", "--engine=embedded") as second:
        summary = run(asking(quick, tmp_path / "out", second.address, data=digits(320), engine=engine))
    assert (summary.rows, summary.bad) == (320, 0)
    assert summary.kept * 16 == there


@pytest.mark.slow
def test_a_busy_service_is_asked_again(tmp_path: Path, store: Path) -> None:
    """More calls than a service lets wait are no bad rows."""
    rows = digits(64)
    rows.by_name = {"x": np.arange(128, dtype=np.float32).reshape(64, 2)}
    settings = Settings.load().model_copy(update={"max_queue_length": 1, "max_batch_size": 1})
    with serve({"slow": Slow()}, settings=settings) as server:
        job = Job(
            model={"address": server.address, "name": "slow"},
            data=rows,
            inputs={"x": {"column": "x"}},
            output={"folder": tmp_path / "out", "shard_rows": 4},
            engine={"kind": "service", "batch": 1, "in_flight": 16},
        )
        summary = run(job)
    assert (summary.rows, summary.bad) == (64, 0)


def test_a_wrong_address_is_told_at_once(store: Path, tmp_path: Path) -> None:
    """A service that nobody runs, and a model that it does not have, are two different ends."""
    with pytest.raises(CutawayError) as caught:
        run(asking(store, tmp_path / "away", "127.0.0.1:9"))
    assert caught.value.reason == Reason.JOB_INTERRUPTED
    with serve({"slow": Slow()}) as server, pytest.raises(CutawayError) as caught:
        run(asking(store, tmp_path / "unknown", server.address))
    assert caught.value.reason == Reason.MODEL_NOT_FOUND
