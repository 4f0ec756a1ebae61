"""Carries the span of a call to its worker, because TorchServe forwards no metadata.

Spans that a model's own code creates are then children of the call's span. The stages of a call need no exporter in the
workers: their durations are in the reply, and the gateway makes spans from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

PART = "traceparent"
"""The name of the part with the span, in W3C Trace Context format."""

_UNSAMPLED = b"-00"


def attached(calls: Iterable[Mapping[str, bytes]]) -> AbstractContextManager[None]:
    """Returns a context in which new spans are children of a call's span. Calls that share a pass share its spans, as
    children of the first call that is sampled."""
    spans = [call[PART] for call in calls if PART in call]
    if not spans:
        return nullcontext()
    return _attach()(min(spans, key=lambda span: span.endswith(_UNSAMPLED)))


@cache
def _attach() -> Callable[[bytes], AbstractContextManager[None]]:
    """Returns OpenTelemetry's context if it is installed; without it there are no spans."""
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return lambda _: nullcontext()
    w3c = TraceContextTextMapPropagator()

    @contextmanager
    def attach(traceparent: bytes) -> Iterator[None]:
        token = context.attach(w3c.extract({PART: traceparent.decode("ascii", "replace")}))
        try:
            yield
        finally:
            context.detach(token)

    return attach
