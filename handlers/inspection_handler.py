"""The TorchServe handler: hands the bytes of each call to `cutaway.worker` and its answers back.

TorchServe wants exactly one class in this module, and reports an ImportError of it as a missing handler of
its own: so nothing is imported up here but what Python brings along.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class InspectionHandler:
    """One copy of one model, in one worker process."""

    def initialize(self, context: Any) -> None:
        """Load the model of ``context``, or say in one line of the log why it cannot be."""
        # TorchServe's own code would print two lines for every batch, for the server to read.
        logging.getLogger().setLevel(logging.WARNING)
        try:
            from cutaway.worker import Worker

            _share_cores(context.model_yaml_config)
            model_dir = Path(context.system_properties["model_dir"])
            self.worker = Worker.load(model_dir, device=_device(context))
        except Exception as failure:
            model = context.manifest["model"]
            _report(f"{model['modelName']} {model['modelVersion']}", failure)
            raise

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Answer each row of ``data`` with exactly one reply.

        A gRPC call gives bytearrays. A REST call may give text or parsed JSON instead, and is answered like a
        call that sent nothing: a row must never cost the others of its batch their answers.
        """
        answers: list[bytes] = self.worker.answer([_sent(row) for row in data])
        return answers


def _report(model: str, failure: Exception) -> None:
    """Name the reason in one line; where that says it all, end the process without TorchServe's traceback."""
    from cutaway.errors import CutawayError

    text = " ".join(str(failure).split())
    what = text if isinstance(failure, CutawayError) else f"{type(failure).__name__}: {text}"
    print(f"cutaway cannot load {model}: {what}", file=sys.stderr)
    if isinstance(failure, CutawayError):
        raise SystemExit(1)


def _sent(row: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in row.items() if isinstance(value, (bytes, bytearray))}


def _device(context: Any) -> str:
    import torch

    gpu = context.system_properties.get("gpu_id")
    return f"cuda:{gpu}" if gpu is not None and torch.cuda.is_available() else "cpu"


def _share_cores(config: Mapping[str, Any]) -> None:
    """Give each worker its share of the cores; workers that take them all slow each other down."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # the operator's word counts
        torch.set_num_threads(max(1, torch.get_num_threads() // int(config.get("maxWorkers", 1))))
