"""The golden files of the contract: read and written to the same values in each form, and complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc import status_pb2

from tools.golden import DIRECTORY, ROOTS, forms, messages, reached

KINDS: dict[str, Any] = {root.DESCRIPTOR.name: root for root in ROOTS} | {"Status": status_pb2.Status}
FILES = sorted(DIRECTORY.glob("*.binpb"))


def kind(path: Path) -> Any:
    return KINDS[path.name.partition(".")[0]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_form_is_the_same_message(path: Path) -> None:
    """And is written as it was; nothing in it is unknown."""
    message = kind(path).FromString(path.read_bytes())
    for inner in _within(message):
        assert not len(UnknownFieldSet(inner)), inner.DESCRIPTOR.full_name
    assert json_format.Parse(path.with_suffix(".json").read_text("utf-8"), kind(path)()) == message
    assert text_format.Parse(path.with_suffix(".txtpb").read_text("utf-8"), kind(path)()) == message
    assert message.SerializeToString(deterministic=True) == path.read_bytes()


def test_the_files_are_those_of_the_contract() -> None:
    """`python -m tools.golden` would write the same: a contract that has changed shows in them."""
    found = {path.name: path.read_bytes() for path in DIRECTORY.iterdir()}
    made = {f"{name}.{suffix}": data for name, message in messages() for suffix, data in forms(message).items()}
    assert found.keys() == made.keys()
    assert [name for name in made if name.endswith("binpb") and made[name] != found[name]] == []


def test_nothing_of_the_contract_is_left_out() -> None:
    """Every field of every message that a root reaches is set somewhere, and every value of an enum but zero."""
    fields: set[str] = set()
    values: set[str] = set()
    for path in FILES:
        for inner in _within(kind(path).FromString(path.read_bytes())):
            for field, value in inner.ListFields():
                fields.add(field.full_name)
                if field.enum_type is not None:
                    several = value if field.is_repeated else [value]
                    values |= {
                        f"{field.enum_type.full_name}.{field.enum_type.values_by_number[each].name}" for each in several
                    }
    found = {each.full_name: each for root in ROOTS for each in reached(root.DESCRIPTOR, set())}
    expected = {field.full_name for each in found.values() for field in each.fields}
    assert expected - fields == set()
    enums = {field.enum_type for each in found.values() for field in each.fields if field.enum_type is not None}
    known = {f"{enum.full_name}.{value.name}" for enum in enums for value in enum.values if value.number}
    assert known - values == set()


def _within(message: Message) -> Iterator[Message]:
    """A message, and those in it; of maps, the values."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        is_map = field.message_type.GetOptions().map_entry
        several = value.values() if is_map else value if field.is_repeated else [value]
        for each in several:
            if isinstance(each, Message):
                yield from _within(each)
