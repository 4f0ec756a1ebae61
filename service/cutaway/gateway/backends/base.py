"""The interface of backends: a request's bytes go in, a worker's reply comes out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

from cutaway.gateway.batching.batcher import Batcher
from cutaway.gateway.models.catalog import Catalog
from cutaway.gateway.observability.call_watch import trace_part
from cutaway.results import ModelName
from cutaway.worker_protocol import cancellation
from cutaway.worker_protocol.torchserve_messages import CallParts
from cutaway.worker_protocol.visible_layers import LayerLists

SetServing: TypeAlias = Callable[[Collection[ModelName]], Awaitable[None]]
"""Sets which models health checks report as serving; the gateway serves if any model does."""

Supervise: TypeAlias = Callable[[SetServing], Coroutine[Any, Any, None]]
"""Keeps a backend running, and reports whether it serves; returns if that is no longer possible."""

MAX_BATCH_BYTES = 4 << 20
"""The largest size of a batch with more than one call: large calls gain nothing from a batch."""


class Backend(Protocol):
    """Runs the models of its catalog."""

    catalog: Catalog

    @property
    def batchers(self) -> Mapping[ModelName, Batcher]:
        """The request queues of the models that have been called."""

    async def call(self, name: ModelName, kind: str, payload: bytes, layers: LayerLists, timeout_s: float) -> bytes:
        """Sends a request to model ``name``, and returns a serialised `cutaway.v1.WorkerReply`.

        Args:
            name: the model.
            kind: ``inspect`` or ``describe``.
            payload: the serialised request.
            layers: the layers that it may name.
            timeout_s: how long the caller waits, in seconds.

        Raises:
            CutawayError: there is no reply.
        """

    def stream(
        self, name: ModelName, payload: bytes, layers: LayerLists, timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Sends a serialised `cutaway.v1.InspectStreamRequest` to model ``name``; arguments as of `call`.

        Yields:
            Serialised `cutaway.v1.InspectStreamResponse` messages; one of them may hold a failure.

        Raises:
            CutawayError: there is no reply.
        """

    async def close(self, grace_s: float) -> None:
        """Releases all resources; running calls get ``grace_s`` seconds to finish."""


def with_context(parts: CallParts, timeout_s: float, cancel_path: bytes) -> CallParts:
    """Adds deadline, cancellation (a path from `cancellation.Cancellations`) and span, for a worker on this machine."""
    # Unix time: gateway and workers share a machine, and so a clock.
    deadline = f"{time.time() + timeout_s:.6f}".encode()
    return {**parts, "deadline": deadline, cancellation.PART: cancel_path, **trace_part()}
