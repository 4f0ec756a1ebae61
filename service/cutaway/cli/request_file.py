"""The file of ``cutaway inspect --request``, and the lines of its fields, which errors name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
import yaml

from cutaway.cli.short_forms import usage_error
from cutaway.errors import CutawayError
from cutaway.request_reader.files import load_arrays, parse_yaml, read_text
from cutaway.request_reader.reader import read_request
from cutaway.request_reader.values import plain
from cutaway.requests import InspectRequest


@dataclass(frozen=True)
class RequestFile:
    """A request and the file that it is from.

    Attributes:
        request: the request, without its model and its inputs.
        name: the path of the file, or ``standard input``.
        root: the file as YAML nodes, which know their lines.
    """

    request: InspectRequest
    name: str
    root: yaml.Node | None

    @contextmanager
    def locating(self, combined: InspectRequest) -> Iterator[None]:
        """Adds file and line to an error in the block that is about a field of the file.

        Args:
            combined: the request that is sent. Its lists begin with those of the file; a field that is no list may be
                from an option, and then has no line.
        """
        try:
            yield
        except CutawayError as failure:
            if self._holds(failure.field, combined) and (line := _line(self.root, failure.field)):
                failure.message += f" ({self.name}, line {line})"
            raise

    def _holds(self, field: str, combined: InspectRequest) -> bool:
        """Returns whether ``field`` of ``combined`` is from the file."""
        name, index = re.fullmatch(r"(\w*)(?:\[(\d+)\])?.*", field, re.DOTALL).groups()  # type: ignore[union-attr]  # any text
        own = getattr(self.request, name, None)
        return int(index) < len(own or ()) if index else getattr(combined, name, None) is own


def read(path: str) -> RequestFile:
    """Reads a file with the fields of a request; ``-`` is standard input. Paths of arrays are relative to the file.

    Raises:
        typer.BadParameter: the file is wrong; the message has its name, and the line of the field at fault.
    """
    name = "standard input" if path == "-" else path
    try:
        text = read_text(Path(path))
        fields = parse_yaml(text, name)
    except CutawayError as failure:
        raise usage_error(failure) from None
    root = yaml.compose(text, yaml.SafeLoader)
    try:
        return RequestFile(read_request(load_arrays(fields, Path(path).parent)), name, root)
    except CutawayError as failure:
        line = _line(root, failure.field)
        place = f"{name}, line {line}" if line else name
        raise typer.BadParameter(f"{place}: {usage_error(failure).message}") from None


def _line(root: yaml.Node | None, field: str) -> int | None:
    """Returns the line, from 1, of ``field`` or of what it would be in: ``captures[1]`` for ``captures[1].module``."""
    node: yaml.Node | None = root
    line = None
    for part in re.findall(r"[^.\[\]]+", field):
        mark, node = _child(node, part)
        if mark is None:
            break
        line = mark.line + 1
    return line


def _child(node: yaml.Node | None, part: str) -> tuple[yaml.Mark | None, yaml.Node | None]:
    """Returns where an element of a list or the key of a mapping begins, and its node; nothing if there is none."""
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)].start_mark, node.value[int(part)]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if plain(key.value) == plain(part):
                return key.start_mark, value
    return None, None
