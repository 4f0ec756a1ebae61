"""Token files, as ``cutaway token`` would have them written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EVERY = ("predict", "inspect", "edit")


def entry(token: str, models: Mapping[str, Sequence[str]], **more: Any) -> str:
    """What the file says of ``token``; the token is the entry's name, too. Further words are TOML already."""
    granted = ", ".join(f"{json.dumps(model)} = {json.dumps(list(scopes))}" for model, scopes in models.items())
    lines = [
        f"[tokens.{json.dumps(token)}]",
        f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"',
        f"models = {{ {granted} }}",
        *(f"{key} = {value}" for key, value in more.items()),
    ]
    return "\n".join(lines) + "\n"


def write(path: Path, *entries: str) -> Path:
    """Put a new file in the place of the old one, as a careful operator does."""
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(entries) or "[tokens]\n", "utf-8")
    os.replace(fresh, path)
    return path
