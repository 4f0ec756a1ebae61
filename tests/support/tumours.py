"""The tumours example with fixed weights: a network trained during a test has other weights on another CPU.

``tests/data/tumours.safetensors`` was written by ``python -m examples.tumours.train tests/data/tumours.safetensors``.
"""

from __future__ import annotations

from pathlib import Path

from examples.tumours.package import package_trained

WEIGHTS = Path(__file__).parents[1] / "data" / "tumours.safetensors"


def tumours_job(directory: Path) -> Path:
    """Writes the model with these weights, the table and the job into ``directory``; returns the path of the job."""
    return package_trained(WEIGHTS, directory)
