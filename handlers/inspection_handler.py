"""The TorchServe handler: hands the bytes of each call to `cutaway.worker` and its answers back.

TorchServe wants exactly one class here, and takes an ImportError for a missing handler of its own: so nothing is
imported up here but what Python brings along.
"""

from __future__ import annotations

import gc
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

            self.worker = Worker.load(Path(context.system_properties["model_dir"]), device=_device(context))
        except Exception as failure:
            _report(context.manifest["model"], failure)
            raise
        gc.collect()
        gc.freeze()  # what is there now stays; each full collection would look through it for a tenth of a second

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Answer each row of ``data`` with exactly one reply.

        A gRPC call gives bytearrays. A REST call, which may give text or parsed JSON, is answered like an empty one.
        """
        rows = [
            {name: bytes(part) for name, part in row.items() if isinstance(part, (bytes, bytearray))} for row in data
        ]
        passing = ["stream" in row and "pipe" not in row for row in rows]  # through a pipe, the worker sends them
        whole = iter(self.worker.answer([row for row, passes in zip(rows, passing) if not passes]))
        return [self._sent_off(*each, context) if passing[each[0]] else next(whole) for each in enumerate(rows)]

    def _sent_off(self, number: int, row: Mapping[str, bytes], context: Any) -> bytes:
        """Send a reply in pieces but for the last, which is returned: TorchServe ends all rows of a batch at once."""
        from ts.handler_utils.utils import send_intermediate_predict_response as send

        pieces = (piece.joined() for piece in self.worker.stream(row))
        last: bytes = next(pieces)
        for piece in pieces:
            send({number: last}, {number: context.get_request_id(number)}, "", 200, context)
            last = piece
        context.set_response_header(number, "ts_stream_next", "false")
        return last


def _report(model: Mapping[str, str], failure: Exception) -> None:
    """Name the reason in one line; where that says it all, end the process without TorchServe's traceback."""
    from cutaway.errors import CutawayError

    known = isinstance(failure, CutawayError)
    text = ("" if known else f"{type(failure).__name__}: ") + " ".join(str(failure).split())
    print(f"cutaway cannot load {model['modelName']} {model['modelVersion']}: {text}", file=sys.stderr)
    if known:
        raise SystemExit(1)


def _device(context: Any) -> str:
    """Where the model runs; with its share of the cores, because workers that take them all slow each other down."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # the operator's word counts
        workers = int(context.model_yaml_config.get("maxWorkers", 1)) * int(os.environ.get("CUTAWAY_REPLICAS", "1"))
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    gpu = context.system_properties.get("gpu_id")
    return f"cuda:{gpu}" if gpu is not None and torch.cuda.is_available() else "cpu"
