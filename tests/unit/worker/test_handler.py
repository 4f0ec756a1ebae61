"""The TorchServe handler: what it takes from TorchServe, and what it hands to the worker."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from ts.context import Context
from ts.utils.util import list_classes_from_module

from cutaway.adapter_modules import plain_names
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.server.archive import reader
from cutaway.server.settings import Settings
from cutaway.server.worker.process import WorkerProcess
from cutaway.server.worker.worker import Worker
from handlers import inspection_handler
from tests.support.serving import package


def test_torchserve_finds_one_class_in_the_handler() -> None:
    """TorchServe refuses a handler module that defines another number of classes than one."""
    assert list_classes_from_module(inspection_handler) == [inspection_handler.InspectionHandler]


def test_no_collection_looks_through_what_a_worker_loaded(tmp_path: Path) -> None:
    """Once a worker has its model, Python's collector leaves alone what was there by then: looking through it would
    hold up a turn for a tenth of a second now and again."""
    code = Path(__file__).parents[2] / "support" / "adapters" / "tiny_adapter.py"
    directory = tmp_path / "unpacked"
    reader.unpack(package(tmp_path, "tiny", f"{code}:Tiny"), directory)
    manifest = {"model": {"modelName": "tiny", "modelVersion": "1.0"}}
    level = logging.getLogger().level
    try:
        with plain_names(directory):  # which a worker keeps, and the tests after this one do not
            inspection_handler.InspectionHandler().initialize(
                Context("tiny", str(directory), manifest, 1, None, "", model_yaml_config={})
            )
        assert gc.get_freeze_count() > 50 * len(gc.get_objects())
    finally:
        gc.unfreeze()
        logging.getLogger().setLevel(level)


def test_rows_from_rest_calls() -> None:
    """Text and JSON, which only REST calls can send, are answered like calls that sent nothing; every row is."""
    handler: Any = inspection_handler.InspectionHandler()
    handler.worker = WorkerProcess(Worker.of(nn.Identity(), "identity", Settings(max_message_bytes=1 << 20)))
    rows = [{"describe": bytearray()}, {"body": {"a": 1}}, {"body": "text"}, {"data": [1]}, {}]
    first, *others = handler.handle(rows, None)
    assert decode_worker_reply(first).response
    for other in others:
        with pytest.raises(InvalidArgument, match="exactly one of the parts inspect, describe, stream, got none"):
            decode_worker_reply(other)
