"""Sets up the observers of a gateway's calls: metrics, log and traces, each if it is configured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import structlog

from cutaway.config.settings import Settings
from cutaway.gateway.batching.batcher import Batcher
from cutaway.gateway.observability.call_watch import CallWatch, Observer
from cutaway.gateway.observability.logging import CallLog
from cutaway.gateway.observability.metrics_endpoint import metrics_endpoint
from cutaway.gateway.observability.prometheus import Metrics
from cutaway.results import ModelName

_COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"

log = structlog.get_logger(__name__)


class Observers:
    """The observers of one gateway.

    Args:
        batchers: the request queues of the models.
        settings: which observers there are, and the address of the metrics.

    Attributes:
        watch: reports calls to the observers.
        metrics: the metrics.
        address: the metrics' ``HOST:PORT``; empty while they are not served.
    """

    def __init__(self, batchers: Mapping[ModelName, Batcher[Any]], settings: Settings) -> None:
        self.metrics = Metrics(batchers)
        self.address = ""
        self._metrics_address = settings.metrics_address
        self._cleanup = ExitStack()
        observers: list[Observer] = []
        if settings.metrics_address:
            observers.append(self.metrics)  # costs a tenth of the gateway's time
        if os.environ.get(_COLLECTOR):
            observers += self._traces()
        if settings.log_format:
            observers.append(CallLog(settings.log_format, settings.log_calls_per_s))
        self.watch = CallWatch(observers)

    def _traces(self) -> list[Observer]:
        try:
            from cutaway.gateway.observability.tracing import Traces
        except ImportError:
            # A warning, not an error: a cluster may set the variable for all its processes.
            log.warning(f"{_COLLECTOR} is set, but traces need: pip install 'cutaway[traces]'")
            return []
        traces = Traces()
        self._cleanup.callback(traces.close)
        return [traces]

    def open(self) -> None:
        """Serves the metrics over HTTP, if an address is set.

        Raises:
            CutawayError: as `metrics_endpoint`.
        """
        if self._metrics_address:
            endpoint = metrics_endpoint(self.metrics.registry, self._metrics_address)
            self.address = self._cleanup.enter_context(endpoint)

    async def close(self) -> None:
        """Closes the metrics' port, and sends the remaining traces."""
        await asyncio.to_thread(self._cleanup.close)
