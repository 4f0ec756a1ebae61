"""The tables of docs/command-line.md, and whether a JSON document has what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"

PLAIN: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "whole number": (int,),
    "number": (int, float),
    "true or false": (bool,),
}


class Documented:
    """What the page says of one command's document.

    Attributes:
        types: the type of each field, by its path.
        seen: the paths whose values were compared.
    """

    def __init__(self, command: str) -> None:
        table = PAGE.read_text("utf-8").partition(f"<!-- json {command} -->")[2].partition("<!-- end of")[0]
        self.types = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", table, re.MULTILINE))
        self.seen: set[str] = set()
        assert self.types, f"no table for {command}"

    def check(self, document: Any) -> None:
        """Fails unless ``document`` has every documented field, no other one, and each of the documented type."""
        self._check_object(document, "")

    def _check_object(self, value: Any, prefix: str) -> None:
        names = {path.removeprefix(prefix) for path in self.types if path.startswith(prefix)}
        assert set(value) == {name for name in names if not re.search(r"[.\[]", name)}, prefix
        for name, field in value.items():
            path = f"{prefix}{name}"
            self.seen.add(path)
            self._check(field, self.types[path], path)

    def _check(self, value: Any, kind: str, path: str) -> None:
        if kind.endswith(" or null"):
            if value is not None:
                self._check(value, kind.removesuffix(" or null"), path)
        elif kind.startswith("list of "):
            assert isinstance(value, list), path
            for element in value:
                self._check(element, kind.removeprefix("list of "), f"{path}[]")
        elif kind.startswith("map of "):
            assert isinstance(value, dict), path
            for element in value.values():
                self._check(element, kind.removeprefix("map of "), f"{path}.*")
        elif kind == "object":
            self._check_object(value, f"{path}.")
        elif kind == "tensor":
            assert list(value) == ["data_type", "shape", "values"], path
        else:
            assert type(value) in PLAIN[kind], f"{path}: {value!r} is no {kind}"
