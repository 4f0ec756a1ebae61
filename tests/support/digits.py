"""The digits network with fixed weights: a network trained during a test has other weights on another CPU.

``tests/data/digits.safetensors`` was written by ``python -m examples.digits.train tests/data/digits.safetensors``.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from examples.digits.digits_adapter import DigitsCNN
from examples.digits.package import package_trained

WEIGHTS = Path(__file__).parents[1] / "data" / "digits.safetensors"

OPERATIONS = 2 * (9 + 16 * 9 + 32 * 16 + 32)
"""Rounded operations on the way to a gradient: the sums of the four layers, forward and backward."""


def network() -> DigitsCNN:
    """Returns the network with these weights, in evaluation mode."""
    model = DigitsCNN()
    model.load_state_dict(load_file(WEIGHTS))
    return model.eval()


def package_digits(store: Path) -> Path:
    """Writes ``digits-1.0.mar`` with these weights into the directory ``store`` and returns its path."""
    return package_trained(WEIGHTS, store)
