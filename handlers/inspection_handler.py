"""The TorchServe handler: makes the process a worker, which the gateway calls, and answers calls of TorchServe's ports.

TorchServe accepts exactly one class in this file, and reports an ImportError as a missing handler. So only Python's
standard library is imported at the top.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class InspectionHandler:
    """A handler of TorchServe, with one copy of one model in one worker process."""

    def initialize(self, context: Any) -> None:
        """Loads the model of ``context``, or logs in one line why it cannot be loaded."""
        # TorchServe's own code prints two lines for every batch.
        logging.getLogger().setLevel(logging.WARNING)
        from cutaway.contract.results import ModelName
        from cutaway.server.worker.process import WorkerProcess

        model, properties = context.manifest["model"], context.system_properties
        self.worker = WorkerProcess.start(
            Path(properties["model_dir"]),
            ModelName(model["modelName"], model["modelVersion"]),
            workers=int(context.model_yaml_config.get("maxWorkers", 1)),
            gpu=properties.get("gpu_id"),
        )

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Returns the replies to the calls in ``data``.

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
