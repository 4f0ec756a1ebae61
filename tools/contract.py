"""The gRPC contract with its comments, for docs/contract.md, from the descriptors of protos/."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

PROTOS = Path(__file__).parent.parent / "protos"
FILES = (
    *("inspection_service", "inspection", "input", "target", "capture", "edit", "attribution", "attack", "check"),
    *("tensor", "model"),
)
"""The files that callers need, in the order of the page. ``worker.proto`` is between the gateway and its workers."""

_PACKAGE = ".cutaway.v1."

Place: TypeAlias = tuple[int, ...]
"""Where something is in a file: numbers of fields of descriptor.proto, and indices."""


def sections() -> Iterator[str]:
    """Yields the lines of the page: each service, message and enum of `FILES` with its comments."""
    files = {file.name: file for file in _descriptors().file}
    for name in FILES:
        yield from _File(files[f"cutaway/v1/{name}.proto"]).lines()


def _descriptors() -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "descriptors")
        sources = [str(PROTOS / "cutaway" / "v1" / f"{name}.proto") for name in FILES]
        options = [f"-I{PROTOS}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *options, *sources]):
            raise SystemExit("protoc failed")
        return FileDescriptorSet.FromString(out.read_bytes())


class _File:
    """One file of the contract."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: dict[Place, str] = {
            tuple(each.path): each.leading_comments for each in file.source_code_info.location
        }

    def lines(self) -> Iterator[str]:
        """Yields the lines of the file's section."""
        yield from (f"## {self._file.name}", "")
        for index, service in enumerate(self._file.service):
            yield from self._service(service, (6, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (4, index))
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (5, index))

    def _service(self, service: ServiceDescriptorProto, place: Place) -> Iterator[str]:
        yield from self._head(service.name, place)
        yield from ("| method | request | reply | meaning |", "|---|---|---|---|")
        for index, method in enumerate(service.method):
            reply = f"{'stream of ' if method.server_streaming else ''}{_link(method.output_type)}"
            meaning = self._cell((*place, 2, index))
            yield f"| `{method.name}` | {_link(method.input_type)} | {reply} | {meaning} |"
        yield ""

    def _message(self, message: DescriptorProto, name: str, place: Place) -> Iterator[str]:
        yield from self._head(name, place)
        if message.field:
            yield from ("| field | number | type | meaning |", "|---|---|---|---|")
        oneof = -1
        entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        for index, field in enumerate(message.field):
            within = field.oneof_index if field.HasField("oneof_index") and not field.proto3_optional else -1
            if within not in (-1, oneof):
                yield f"| **one of** `{message.oneof_decl[within].name}` | | | {self._cell((*place, 8, within))} |"
            oneof = within
            mark = "– " if within != -1 else ""
            meaning = self._cell((*place, 2, index))
            yield f"| {mark}`{field.name}` | {field.number} | {_type(field, entries)} | {meaning} |"
        yield ""
        for index, inner in enumerate(message.nested_type):
            if not inner.options.map_entry:
                yield from self._message(inner, f"{name}.{inner.name}", (*place, 3, index))
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*place, 4, index))

    def _enum(self, enum: EnumDescriptorProto, name: str, place: Place) -> Iterator[str]:
        yield from self._head(name, place)
        yield from ("| value | number | meaning |", "|---|---|---|")
        for index, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {self._cell((*place, 2, index))} |"
        yield ""

    def _head(self, name: str, place: Place) -> Iterator[str]:
        yield from (f"### {name}", "", *self._comment(place).strip().splitlines(), "")

    def _comment(self, place: Place) -> str:
        lines = self._comments.get(place, "").splitlines()
        return "\n".join(line.removeprefix(" ") for line in lines)

    def _cell(self, place: Place) -> str:
        return " ".join(self._comment(place).split()).replace("|", "\\|")


def _type(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    entry = entries.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key, {})} to {_type(value, {})}"
    label = "repeated " if field.label == field.LABEL_REPEATED else "optional " if field.proto3_optional else ""
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return label + (_link(field.type_name) if field.type_name else f"`{kind}`")


def _link(type_name: str) -> str:
    """Returns a link to a message or enum of this contract; other names as they are."""
    name = type_name.removeprefix(_PACKAGE)
    return f"[{name}](#{name.lower().replace('.', '')})" if name != type_name else f"`{name.lstrip('.')}`"
