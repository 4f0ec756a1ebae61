"""Trains the tumours model and writes all that its job needs: ``python -m examples.tumours.package DIRECTORY``.

DIRECTORY/models/tumours-1.0.mar    the model
DIRECTORY/tumours.csv               the tumours that training never saw
DIRECTORY/average.npy               the average of the others, the baseline of attributions
DIRECTORY/job.yaml                  the job
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from examples import build
from examples.tumours.data import held_out, training, write_table
from examples.tumours.train import train_and_save

ADAPTER = Path(__file__).with_name("tumours_adapter.py")
JOB = Path(__file__).with_name("job.yaml")


def package(directory: Path) -> Path:
    """Trains, and writes model, table, average and job into ``directory``; returns the path of the job."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "tumours.safetensors"
        train_and_save(weights)
        return package_trained(weights, directory)


def package_trained(weights: Path, directory: Path) -> Path:
    """Writes model, table, average and job into ``directory``, from weights that exist; returns the path of the job."""
    store = directory / "models"
    store.mkdir(parents=True, exist_ok=True)
    build(model="tumours", adapter=f"{ADAPTER}:Tumours", weights=weights, destination=store)
    write_table(directory / "tumours.csv", held_out())
    np.save(directory / "average.npy", training().features.mean(axis=0, keepdims=True))
    return Path(shutil.copy(JOB, directory / "job.yaml"))


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.tumours.package DIRECTORY")
    print(package(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
