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
        """Load the model of ``context``, or end the process with one line that says why."""
        # TorchServe logs two lines for every batch, and reads them all back; that costs throughput.
        logging.getLogger().setLevel(logging.WARNING)
        model_dir = Path(context.system_properties["model_dir"])
        try:
            from cutaway.worker import Worker

            _share_cores(context.model_yaml_config)
            self.worker = Worker.load(model_dir, device=_device(context))
        except Exception as failure:
            what = str(failure) or type(failure).__name__
            # Standard error reaches the operator's log as a warning, standard output need not.
            print(f"cutaway cannot load {context.manifest['model']['modelName']}: {what}", file=sys.stderr)
            raise

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Answer each row of ``data`` with exactly one reply.

        A gRPC call gives bytearrays. A REST call may give text or parsed JSON instead, and is answered like a
        call that sent nothing: a row must never cost the others of its batch their answers.
        """
        return self.worker.answer([_sent(row) for row in data])


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
