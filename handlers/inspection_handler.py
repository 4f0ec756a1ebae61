"""The TorchServe handler: makes the process a worker, which the gateway calls, and answers calls of TorchServe's ports.

TorchServe accepts exactly one class in this file, and reports an ImportError as a missing handler: so only Python's
standard library is imported at the top.
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
    """One copy of one model in one worker process."""

    def initialize(self, context: Any) -> None:
        """Loads the model of ``context``, or logs in one line why it cannot be loaded."""
        # TorchServe's own code prints two lines for every batch.
        logging.getLogger().setLevel(logging.WARNING)
        try:
            from cutaway.worker.process import WorkerProcess

            self.worker = WorkerProcess.load(Path(context.system_properties["model_dir"]), _device(context))
        except Exception as failure:
            _report(context.manifest["model"], failure)
            raise
        gc.collect()
        gc.freeze()  # these objects stay; every full collection would scan them for a tenth of a second

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Returns one reply for each call in ``data``.

        The parts of a gRPC call are bytearrays. A REST call, which may have text or parsed JSON, counts as empty.
        """
        calls = [
            {name: bytes(part) for name, part in call.items() if isinstance(part, (bytes, bytearray))} for call in data
        ]
        streamed = ["stream" in call for call in calls]
        replies = iter(self.worker.answer([call for call, streams in zip(calls, streamed) if not streams]))
        return [self._stream(n, call, context) if streamed[n] else next(replies) for n, call in enumerate(calls)]

    def _stream(self, number: int, call: Mapping[str, bytes], context: Any) -> bytes:
        """Sends the pieces of a reply, and returns the last one: TorchServe ends all calls of a batch at once."""
        from ts.handler_utils.utils import send_intermediate_predict_response as send

        pieces = (piece.joined() for piece in self.worker.stream(call))
        last: bytes = next(pieces)
        for piece in pieces:
            send({number: last}, {number: context.get_request_id(number)}, "", 200, context)
            last = piece
        context.set_response_header(number, "ts_stream_next", "false")
        return last


def _report(model: Mapping[str, str], failure: Exception) -> None:
    """Logs why the model cannot be loaded; for a known reason, ends the process without TorchServe's traceback."""
    from cutaway.errors import CutawayError

    known = isinstance(failure, CutawayError)
    text = ("" if known else f"{type(failure).__name__}: ") + " ".join(str(failure).split())
    print(f"cutaway cannot load {model['modelName']} {model['modelVersion']}: {text}", file=sys.stderr)
    if known:
        raise SystemExit(1)


def _device(context: Any) -> str:
    """Returns the model's device; limits torch to a share of the cores, since workers that use all slow each other."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # a setting of the operator wins
        workers = int(context.model_yaml_config.get("maxWorkers", 1)) * int(os.environ.get("CUTAWAY_REPLICAS", "1"))
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    gpu = context.system_properties.get("gpu_id")
    return f"cuda:{gpu}" if gpu is not None and torch.cuda.is_available() else "cpu"
