"""The span that a call belongs to, told to the worker that answers it: TorchServe passes no metadata on.

What a model's own code traces then lies below the call. A call's stages need no exporter in each worker: how long they
took is in its reply, and the front door makes spans of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

PART = "traceparent"
"""The part of a call that holds it, as W3C Trace Context spells it."""

_UNSAMPLED = b"-00"


def below(rows: Iterable[Mapping[str, bytes]]) -> AbstractContextManager[None]:
    """A context in which what is traced lies below the call of ``rows``. Calls that share a pass share its spans too:
    these are the first one's that is sampled."""
    told = [row[PART] for row in rows if PART in row]
    if not told:
        return nullcontext()
    return _entering()(min(told, key=lambda each: each.endswith(_UNSAMPLED)))


@cache
def _entering() -> Callable[[bytes], AbstractContextManager[None]]:
    """OpenTelemetry's own, where it is installed; nothing traces without it."""
    try:
        from opentelemetry import context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return lambda _: nullcontext()
    w3c = TraceContextTextMapPropagator()

    @contextmanager
    def entered(traceparent: bytes) -> Iterator[None]:
        token = context.attach(w3c.extract({PART: traceparent.decode("ascii", "replace")}))
        try:
            yield
        finally:
            context.detach(token)

    return entered
