"""Scikit-learn's breast cancer data: 30 measurements of 569 tumours, and whether they were malignant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from examples.tumours.tumours_adapter import FEATURES, LABELS

_SEED = 0
_HELD_OUT = 0.3


class Examples(NamedTuple):
    """Tumours and what they were.

    Attributes:
        features: float32 [examples, 30], in the order of `FEATURES`.
        classes: int64 [examples], indices of `LABELS`.
    """

    features: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


def training() -> Examples:
    """The tumours to learn from."""
    return _split()[0]


def held_out() -> Examples:
    """The 171 tumours that training never sees."""
    return _split()[1]


def write_table(path: Path, examples: Examples) -> None:
    """Writes a CSV file: the tumour's name, a column for each feature, and the diagnosis by its label."""
    columns: dict[str, Any] = {"tumour": [f"tumour-{index:03d}" for index in range(len(examples.classes))]}
    columns |= {name: examples.features[:, index] for index, name in enumerate(FEATURES)}
    columns["diagnosis"] = [LABELS[index] for index in examples.classes]
    csv.write_csv(pa.table(columns), path)


def _split() -> tuple[Examples, Examples]:
    data: Any = load_breast_cancer()
    features, classes = data.data.astype(np.float32), data.target.astype(np.int64)
    rest, held, rest_classes, held_classes = train_test_split(
        features, classes, test_size=_HELD_OUT, random_state=_SEED, stratify=classes
    )
    return Examples(rest, rest_classes), Examples(held, held_classes)
