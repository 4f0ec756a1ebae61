"""Who watches a front door's calls: metrics, a log and traces, each where it is asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from cutaway.gateway.logs import CallLog
from cutaway.gateway.metrics import Metrics, Port
from cutaway.gateway.turns import Turns
from cutaway.gateway.watched import Observer, Watch
from cutaway.results import ModelName
from cutaway.settings import Settings

if TYPE_CHECKING:
    from cutaway.gateway.traces import Traces

_COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"

log = structlog.get_logger(__name__)


class Observers:
    """All that look on.

    Args:
        turns: the queues in front of the models.
        settings: who looks, and where metrics are read.

    Attributes:
        watch: what the server lets see its calls.
        metrics: the numbers.
        address: where they can be read over HTTP; empty where nowhere.
    """

    def __init__(self, turns: Mapping[ModelName, Turns], settings: Settings) -> None:
        self.metrics = Metrics(turns)
        self._traces = _traces()
        self._metrics_address = settings.metrics_address
        self._port: Port | None = None
        counted = [self.metrics] if settings.metrics_address else []  # a tenth of the front door's time
        logged = [CallLog(settings.log_format)] if settings.log_format else []
        traced = [self._traces] if self._traces else []
        observers: list[Observer] = [*counted, *traced, *logged]
        self.watch = Watch(observers)
        self.address = ""

    def open(self) -> None:
        """Let metrics be read.

        Raises:
            CutawayError: the address cannot be had.
        """
        if self._metrics_address:
            self._port = Port(self.metrics, self._metrics_address)
            self.address = self._port.address

    async def close(self) -> None:
        """Let go of the port, and send what is left of traces."""
        for each in (self._port, self._traces):
            if each is not None:
                await asyncio.to_thread(each.close)


def _traces() -> Traces | None:
    if not os.environ.get(_COLLECTOR):
        return None
    try:
        from cutaway.gateway.traces import Traces
    except ImportError:
        # A cluster may set the variable for everything that runs in it: no reason not to serve.
        log.warning(f"{_COLLECTOR} is set, but there are no traces without: pip install 'cutaway[traces]'")
        return None
    return Traces()
