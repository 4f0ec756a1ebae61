"""Trains the language model of letters and packages it: ``python -m examples.letters.package MODEL_STORE``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cutaway.server.archive import builder
from examples.letters.train import train_and_save


def package_letters(store: Path) -> tuple[float, Path]:
    """Train, and write ``letters-1.0.mar`` into ``store``; returns the loss and the path."""
    with tempfile.TemporaryDirectory() as scratch:
        loss = train_and_save(Path(scratch))
        weights, others = builder.of_transformers(Path(scratch))
        archive = builder.build(
            model="letters",
            adapter=builder.CAUSAL_LM,
            weights=weights,
            options={},
            extra_files=others,
            batch_size=16,
            max_batch_delay_ms=1,
            workers=1,
            response_timeout_s=60,
            destination=store,
            force=True,
        )
    return loss, archive


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.letters.package MODEL_STORE")
    print(*package_letters(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
