"""Makes spans that a model's own code creates children of the call's span.

The stages of a call need no exporter in the workers: their durations are in the reply, and the gateway makes spans of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

_UNSAMPLED = "-00"


def attached(spans: Iterable[str]) -> AbstractContextManager[None]:
    """Returns a context in which new spans are children of one of ``spans``, which are in W3C Trace Context format or
    empty. Calls that share a pass share its spans, as children of the first call that is sampled."""
    known = [span for span in spans if span]
    if not known:
        return nullcontext()
    return _attach()(min(known, key=lambda span: span.endswith(_UNSAMPLED)))


@cache
def _attach() -> Callable[[str], AbstractContextManager[None]]:
    """Returns OpenTelemetry's context if it is installed; without it there are no spans."""
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return lambda _: nullcontext()
    w3c = TraceContextTextMapPropagator()

    @contextmanager
    def attach(traceparent: str) -> Iterator[None]:
        token = context.attach(w3c.extract({"traceparent": traceparent}))
        try:
            yield
        finally:
            context.detach(token)

    return attach
