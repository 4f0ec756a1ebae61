"""The gateway's servers, by gRPC and by HTTP, over one service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import structlog

from cutaway.client.transport import SERVICE
from cutaway.contract.errors import Reason, error
from cutaway.contract.results import ModelName
from cutaway.server.auth.tls import check_http_exposure, server_credentials
from cutaway.server.auth.tokens import authenticator
from cutaway.server.backends.backend import Backend
from cutaway.server.batching import Batcher
from cutaway.server.listening import check_addresses
from cutaway.server.observability.call_watch import CallWatch, Observer
from cutaway.server.observability.logging import CallLog
from cutaway.server.observability.prometheus import Metrics, metrics_endpoint
from cutaway.server.open_inference.grpc_service import grpc_service
from cutaway.server.open_inference.infer import OpenInference
from cutaway.server.rpc.server import GrpcServer, GrpcService
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.settings import Settings

if TYPE_CHECKING:
    from cutaway.server.http.server import HttpServer

_COLLECTOR = "OTEL_EXPORTER_OTLP_ENDPOINT"

log = structlog.get_logger(__name__)


class Observers:
    """The observers of a gateway's calls: metrics, log and traces, as far as they are configured.

    Args:
        batchers: the request queues of the models.
        settings: they configure the observers, and name the address of the metrics.

    Attributes:
        watch: it reports calls to the observers.
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
            from cutaway.server.observability.tracing import Traces
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
            endpoint = metrics_endpoint(self.metrics.registry, self._metrics_address, self.watch.report)
            self.address = self._cleanup.enter_context(endpoint)

    async def close(self) -> None:
        """Closes the metrics' port, and sends the remaining traces."""
        await asyncio.to_thread(self._cleanup.close)


def check_settings(settings: Settings) -> None:
    """Reads the files in ``settings``, and tries its addresses; called before anything slow is started.

    Raises:
        CutawayError: a certificate, a key, the token file or an address cannot be used; has the environment variable.
    """
    server_credentials(settings)
    authenticator(settings.tokens)
    check_http_exposure(settings)
    metrics = settings.metrics_address
    check_addresses(
        {
            "CUTAWAY_ADDRESS": settings.address,
            "CUTAWAY_HTTP_ADDRESS": settings.http_address,
            "CUTAWAY_METRICS_ADDRESS": f"127.0.0.1{metrics}" if metrics.startswith(":") else metrics,
        }
    )


class GatewayServer:
    """The servers of one backend, by gRPC and by HTTP.

    Args:
        backend: runs the models.
        settings: addresses and limits.

    Attributes:
        observers: metrics, log and traces.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._reported: set[ModelName] = set()
        self._serving: set[ModelName] = set()
        known = authenticator(settings.tokens)
        self.observers = Observers(backend.batchers, settings)
        servicer = Servicer(backend, settings, known, self.observers.watch)
        open_inference = OpenInference(servicer, self._serving)
        own = GrpcService(SERVICE, [servicer.handler()])
        self._grpc = GrpcServer([own, grpc_service(open_inference)], known, settings)
        self._http = _http_server(open_inference, self._serving) if settings.http_address else None

    @property
    def address(self) -> str:
        """The ``host:port`` of gRPC."""
        return self._grpc.address

    @property
    def http_address(self) -> str:
        """The ``host:port`` of HTTP; empty while it is not served."""
        return self._http.address if self._http else ""

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            CutawayError: an address is not available.
        """
        await self._grpc.start()
        self.observers.open()
        if self._http:
            await self._http.start()
        await self.set_serving(self._backend.catalog.ready())

    async def stop(self, grace_s: float) -> None:
        """Accepts no more calls, gives running calls ``grace_s`` seconds to finish, and then ends."""
        await self.set_serving(())
        stopping = [self._grpc.stop(grace_s), *([self._http.stop(grace_s)] if self._http else [])]
        await asyncio.gather(*stopping)
        await self.observers.close()

    async def set_serving(self, models: Collection[ModelName]) -> None:
        """Sets which models health checks and metrics report as serving.

        The gateway serves if any model does. A name without a version stands for the highest version, as in calls.
        Models whose archives do not load are reported as not serving. Those that are gone are, too, by health checks,
        which watch them; metrics forget them.
        """
        self._serving.clear()
        self._serving.update(models)
        catalog = self._backend.catalog
        known = {*catalog.all(), *(ModelName(item.model, item.version) for item in catalog.unserved if item.model)}
        self._reported |= known
        states = dict.fromkeys(["", SERVICE], bool(models))
        states |= {f"{name.model}/versions/{name.version}": name in models for name in self._reported}
        states |= dict.fromkeys((name.model for name in self._reported), False)
        states |= {name.model: name in models for name in catalog.all()}
        await self._grpc.report(states)
        self.observers.metrics.set_serving({name: name in models for name in known}, catalog.unserved)


def _http_server(open_inference: OpenInference, serving: Collection[ModelName]) -> HttpServer:
    """Creates the HTTP server. Its packages are imported here, because most gateways do not serve HTTP.

    Raises:
        FailedPrecondition: ``PACKAGE_MISSING``, with what to install.
    """
    try:
        from cutaway.server.http.server import HttpServer
        from cutaway.server.open_inference.rest import routes
    except ModuleNotFoundError as failure:
        if (failure.name or "").startswith("cutaway"):
            raise
        what = f"{failure.name} is missing; HTTP needs: pip install 'cutaway[http]'"
        raise error(Reason.PACKAGE_MISSING, what, "http_address") from None
    return HttpServer(open_inference.servicer, serving, routes(open_inference))
