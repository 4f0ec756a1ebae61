"""Trains the digits model and packages it: ``python -m examples.digits.package MODEL_STORE``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from examples import build
from examples.digits.train import train_and_save

ADAPTER = Path(__file__).with_name("digits_adapter.py")


def package(store: Path) -> Path:
    """Train, and write ``digits-1.0.mar`` into ``store``; returns its path."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "digits.safetensors"
        train_and_save(weights)
        return package_trained(weights, store)


def package_trained(weights: Path, store: Path) -> Path:
    """Write ``digits-1.0.mar`` into ``store``, from weights that are there already."""
    return build(model="digits", adapter=f"{ADAPTER}:Digits", weights=weights, destination=store)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.digits.package MODEL_STORE")
    print(package(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
