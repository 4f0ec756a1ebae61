"""The TorchServe handler: what it takes from TorchServe, and what it hands to the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ts.utils.util import list_classes_from_module

from handlers import inspection_handler


def test_torchserve_finds_one_class_in_the_handler() -> None:
    """TorchServe refuses a handler module that defines another number of classes than one."""
    assert list_classes_from_module(inspection_handler) == [inspection_handler.InspectionHandler]


def test_rows_from_rest_calls() -> None:
    """Text and JSON, which only REST calls can send, reach the worker as nothing sent; every row is answered."""

    class Listening:
        def answer(self, rows: Sequence[dict[str, bytes]]) -> list[bytes]:
            self.heard = list(rows)
            return [b""] * len(rows)

    handler: Any = inspection_handler.InspectionHandler()
    handler.worker = listening = Listening()
    rows = [{"inspect": bytearray(b"\0")}, {"body": {"a": 1}}, {"body": "text"}, {"data": [1]}, {}]

    assert handler.handle(rows, None) == [b""] * 5
    assert listening.heard == [{"inspect": b"\0"}, {}, {}, {}, {}]
    assert type(listening.heard[0]["inspect"]) is bytes
