"""Drift between jobs of real models, and the commands of docs/batch.md about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from cutaway.jobs import Job, compare, read, run
from examples.digits import train
from examples.digits.data import held_out
from examples.digits.package import package_trained
from tests.support.cli import cutaway
from tests.support.documents import PAGES, commands
from tests.support.jobs import Columns, digits_words

REQUEST: dict[str, Any] = {
    "attributions": [{"method": "saliency"}, {"method": "layer_grad_cam", "layer": "conv2"}],
    "captures": [{"layer": "relu3"}],
}


def explained(store: Path, folder: Path, images: Any, rows: range) -> Path:
    """The folder of a job over some of the held-out digits."""
    data = Columns(
        {
            "pixels": images[rows.start : rows.stop : rows.step],
            "digit": held_out().labels[rows.start : rows.stop : rows.step],
            "name": [f"digit-{row:04d}" for row in rows],
        }
    )
    output = {"folder": folder, "shard_rows": 64, "keep_inputs": True}
    run(Job(**digits_words(store, folder, data=data, request=REQUEST, output=output)))
    return folder


@pytest.fixture(scope="module")
def jobs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the documentation: a job of the digits, and one of the same digits by a model trained anew."""
    root = tmp_path_factory.mktemp("drift")
    patch = pytest.MonkeyPatch()
    patch.setattr(train, "_SEED", 1)
    save_file(train.train().state_dict(), root / "digits.safetensors")
    patch.undo()
    (root / "models").mkdir()
    package_trained(root / "digits.safetensors", root / "models")
    for name, models in (("audit", store), ("retrained", root / "models")):
        explained(models, root / name / "explained", held_out().images, range(360))
    return root


def alarms(before: Path, after: Path) -> set[str]:
    return {f"{each.column.partition(':')[0]} {each.measure}" for each in compare(before, after).measures if each.alarm}


def test_a_retrained_model_has_other_activations(jobs: Path) -> None:
    """Its hidden features are others, and nearly all of its predictions the same."""
    assert alarms(jobs / "audit" / "explained", jobs / "retrained" / "explained") == {"capture psi", "capture mmd_p"}


def test_drift_of_real_inputs_is_found(store: Path, jobs: Path, tmp_path: Path) -> None:
    """Digits in half of their ink are other inputs, to which the model reacts; halves of the digits are alike."""
    faint = explained(store, tmp_path / "faint", held_out().images * np.float32(0.5), range(360))
    assert {"input psi", "capture psi", "capture mmd_p"} <= alarms(jobs / "audit" / "explained", faint)
    halves = [explained(store, tmp_path / f"{start}", held_out().images, range(start, 360, 2)) for start in (0, 1)]
    assert not alarms(halves[0], halves[1])


def test_commands_of_the_documentation_run(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of docs/batch.md about drift and similar rows, with the exit status that the page says."""
    monkeypatch.chdir(jobs)
    (page,) = (page for page in PAGES if page.name == "batch.md")
    found = [words[1:] for words in commands(page, "cutaway") if {"compare", "similar"} & {*words[2:3]}]
    statuses = [cutaway(*words).returncode for words in found if any("explained" in word for word in words)]
    assert statuses == [7, 0, 0, 0]
    assert (jobs / "drift.prom").is_file()
    same = read(jobs / "audit" / "explained").similar("capture:relu3@output", "digit-0007", 10).rows
    assert {each.prediction for each in same} == {str(held_out().labels[7])}
