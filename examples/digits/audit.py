"""An audit of a data set: which of 1,797 digits are mislabelled, and which are explained weakly? See docs/batch.md.

python -m examples.digits.audit prepare audit      trains and packages the model, writes digits and labels, and the job
cutaway batch run audit/job.yaml                   explains every digit
python -m examples.digits.audit suspects audit     says whom to look at
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.jobs import Results, read
from examples.digits.data import held_out, training
from examples.digits.package import package

WRONG = 24
"""Labels that are changed on purpose, so that there is something to find."""

JOB = """\
model: {archive: models/digits-1.0.mar}
data: {path: digits.parquet}
inputs:
  image: {column: pixels, dtype: float32, shape: [1, 8, 8], scale: 0.00392156862745098}  # 0 to 255 as 0 to 1
id: {column: name}
label: {column: digit}
target: label          # why would it be what its label says?
request:
  attributions:
    - {method: integrated_gradients, n_steps: 64}
    - {method: saliency}
    - {method: layer_grad_cam, layer: conv2}
  captures:
    - {layer: relu3}
  check: same_pass
output: {folder: explained, keep_inputs: true}
"""


class Suspect(NamedTuple):
    """A digit to look at.

    Attributes:
        name: which.
        label: what it is said to be.
        prediction: what the model takes it for.
        number: how sure the model is of that; or how little of the explanation lies on ink.
    """

    name: str
    label: int
    prediction: int
    number: float


def prepare(directory: Path) -> list[str]:
    """Write model, data and job; returns the names of the digits whose label is changed."""
    package(directory / "models")
    pixels = np.concatenate([training().pixels, held_out().pixels])
    labels = np.concatenate([training().labels, held_out().labels])
    names = [f"digit-{number:04d}" for number in range(len(labels))]
    random = np.random.default_rng(7)
    changed = random.choice(len(labels), WRONG, replace=False)
    labels[changed] = (labels[changed] + random.integers(1, 10, WRONG)) % 10
    table = pa.table({"name": names, "pixels": list(pixels.reshape(len(pixels), -1)), "digit": labels})
    parquet.write_table(table, directory / "digits.parquet")
    (directory / "job.yaml").write_text(JOB)
    return [names[number] for number in sorted(changed)]


def mislabelled(results: Results) -> list[Suspect]:
    """Digits that the model takes for another than their label says, the surest first."""
    labels, predictions, sure = results["label"], results["prediction"], results["probability"]
    order = [row for row in np.argsort(-sure) if predictions[row] != labels[row]]
    return [
        Suspect(results_id, int(labels[row]), int(predictions[row]), float(sure[row]))
        for row, results_id in ((row, str(results["id"][row])) for row in order)
    ]


def weakly_explained(results: Results, count: int = 5) -> list[Suspect]:
    """Digits that are taken for what they are, but rather for their paper than for their ink: where little of what
    moves the score lies on a stroke."""
    share = on_ink(results["input:image"], results["attribution:saliency:image"])
    right = results["prediction"] == results["label"]
    order = [row for row in np.argsort(share) if right[row]][:count]
    labels, names = results["label"], results["id"]
    return [Suspect(str(names[row]), int(labels[row]), int(labels[row]), float(share[row])) for row in order]


def on_ink(images: npt.NDArray[np.float32], saliency: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The share of each digit's saliency that lies where its ink is at least half as dark as can be, [rows]."""
    ink = images >= 0.5
    share: npt.NDArray[np.float32] = (saliency * ink).sum(axis=(1, 2, 3)) / saliency.sum(axis=(1, 2, 3))
    return share


def suspects(directory: Path) -> None:
    """Say whom to look at."""
    results = read(directory / "explained")
    print("The model takes these for something else than their label says:")
    for each in mislabelled(results):
        print(f"  {each.name}: labelled {each.label}, looks like {each.prediction} (p = {each.number:.3f})")
    print("These are taken for what they are, but hardly for their ink:")
    for each in weakly_explained(results):
        print(f"  {each.name}, a {each.label}: {each.number:.0%} of the saliency lies on ink")


def main() -> None:
    """Prepare an audit, or say what it found."""
    parser = argparse.ArgumentParser(prog="audit")
    parser.add_argument("what", choices=["prepare", "suspects"])
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "suspects":
        suspects(arguments.directory)
        return
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print("labels changed on purpose:", " ".join(prepare(arguments.directory)))


if __name__ == "__main__":
    main()
