"""YAML files, and the arrays in the files that they name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cutaway.contract.errors import Reason, error
from cutaway.contract.json_text import MAX_DEPTH
from cutaway.contract.request_reader.reader import map_values
from cutaway.contract.tensors import Array, read_npy
from cutaway.contract.wire.codec import convert_each


def load_yaml(path: Path) -> dict[str, Any]:
    """Loads the mapping in a YAML file; the path ``-`` is standard input.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if the file cannot be read or holds no mapping.
    """
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Returns the text of a file, or of standard input if ``path`` is ``-``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if it cannot be read, or is no UTF-8.
    """
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} is not YAML: {failure}") from None


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """Returns the mapping in ``text``, YAML from the file ``name``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` with ``name`` and the line, if ``text`` is no YAML or holds no mapping.
    """
    try:
        content = read_yaml(text)
    except yaml.MarkedYAMLError as failure:
        line = f"line {failure.problem_mark.line + 1}: " if failure.problem_mark else ""
        raise error(Reason.INVALID_VALUE, f"{name} is not YAML: {line}{failure.problem}") from None
    except yaml.YAMLError as failure:
        raise error(Reason.INVALID_VALUE, f"{name} is not YAML: {' '.join(str(failure).split())}") from None
    if not isinstance(content, dict):
        raise error(Reason.INVALID_VALUE, f"{name} holds no mapping of field names to values")
    return {str(key): value for key, value in content.items()}


def read_yaml(text: str) -> Any:
    """Returns the value of a YAML text without aliases, which multiply, and with each key once in a mapping.

    Raises:
        yaml.YAMLError: the text is no such YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, MemoryError):
        raise
    except Exception as failure:  # of a date, a number or a tag: PyYAML raises many kinds
        raise yaml.YAMLError(f"a value cannot be read: {failure}"[:200]) from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses aliases and deep nesting while PyYAML builds its nodes: a few bytes could become a huge value."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases are not read: write the value", problem_mark=self._mark())
        if self._depth == MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=self._mark())
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _mark(self) -> Any:
        event: Any = self.peek_event  # without types
        return event().start_mark

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        seen = set[Any]()
        for key, _ in node.value if len(mapping) < len(node.value) else ():
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r:.80} is there twice", problem_mark=key.start_mark)
            seen.add(name)
        return mapping


def load_arrays(value: Any, directory: Path) -> Any:
    """Replaces each text that ends with ``.npy``, at any depth of ``value``, by the array in that file.

    Args:
        value: mappings, lists, texts and numbers.
        directory: where relative paths begin.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if a file cannot be read or holds no array; the error's field is the place of
            the file's name in ``value``.
    """
    if isinstance(value, str) and value.lower().endswith(".npy"):
        return _load_array(directory / value)
    if isinstance(value, Mapping):
        return map_values(partial(load_arrays, directory=directory), value)
    if isinstance(value, list):
        return convert_each(partial(load_arrays, directory=directory), value)
    return value


def _load_array(path: Path) -> Array:
    try:
        with path.open("rb") as file:
            return read_npy(file)
    except (OSError, ValueError) as failure:
        cause = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
        raise error(Reason.INVALID_VALUE, f"{path} cannot be read: {cause}") from None
