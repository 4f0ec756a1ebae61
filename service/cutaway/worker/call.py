"""One call of a worker, whatever brought it: the gateway's connection, TorchServe, or a thread of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cutaway.engine.runtime.cancellation import NEVER_CANCELLED, Cancellation
from cutaway.errors import Reason, error
from cutaway.module_globs import GlobLists
from cutaway.v1 import worker_pb2

KINDS = ("inspect", "describe", "stream")
"""What a call may be: an InspectRequest, a GetModelRequest, an InspectStreamRequest."""


class Call(NamedTuple):
    """One call.

    Attributes:
        kind: one of `KINDS`.
        payload: the serialised request.
        cancellation: when the caller stops waiting.
        layers: the layers that the call may name.
        traceparent: its span in W3C Trace Context format; empty for none.
    """

    kind: str
    payload: bytes
    cancellation: Cancellation = NEVER_CANCELLED
    layers: GlobLists = ()
    traceparent: str = ""

    @classmethod
    def of_message(cls, message: worker_pb2.WorkerCall, hung_up: Callable[[], bool]) -> Call:
        """Returns the call in a message of the gateway; ``hung_up`` returns whether it was cancelled."""
        kind = message.WhichOneof("request") or ""
        layers = tuple(tuple(each.globs) for each in message.layers)
        cancellation = Cancellation(message.deadline or None, hung_up)
        return cls(kind, getattr(message, kind, b""), cancellation, layers, message.traceparent)

    @classmethod
    def of_parts(cls, parts: Mapping[str, bytes]) -> Call:
        """Returns the call in the parts that TorchServe hands over: one part, named after its kind."""
        kinds = [kind for kind in KINDS if kind in parts]
        return cls(kinds[0], parts[kinds[0]]) if len(kinds) == 1 else cls("", ", ".join(sorted(parts)).encode())

    def check(self) -> None:
        """Raises ``MALFORMED_REQUEST`` for a call of no kind."""
        if self.kind not in KINDS:
            got = self.payload.decode("utf-8", "replace") or "none"
            raise error(
                Reason.MALFORMED_REQUEST, f"a call has exactly one of the parts {', '.join(KINDS)}, got {got:.200}"
            )
