"""The layers that a call may name: lists of globs, from the caller's token, sent with the call to its worker.

Only a worker knows which layers a glob or an alias stands for, so the worker decides. A gateway before other gateways
passes the lists on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from cutaway.errors import Reason, error

LayerLists: TypeAlias = tuple[tuple[str, ...], ...]
"""A layer is visible if a glob of each list matches its name; without lists, every layer is."""

PART = "layers"
"""The name of the part with the lists; a call without it may name every layer."""

METADATA = "cutaway-layers-bin"
"""The metadata key with the same bytes between gateways. A caller who sends it sees fewer layers, never more."""


def part(layers: LayerLists) -> Mapping[str, bytes]:
    """Returns the part `PART` of a call, if it needs one."""
    return {PART: encode(layers)} if layers else {}


def encode(layers: LayerLists) -> bytes:
    """Serialises ``layers``."""
    return json.dumps(layers).encode()


def decode(data: bytes) -> LayerLists:
    """Returns the lists in ``data``, which `encode` made; no lists for no data.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``.
    """
    try:
        return tuple(_strings(globs) for globs in json.loads(data)) if data else ()
    except (ValueError, TypeError, RecursionError):
        raise error(Reason.MALFORMED_REQUEST, "the lists of layers are not lists of texts in JSON") from None


def _strings(globs: object) -> tuple[str, ...]:
    if not isinstance(globs, list) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError
    return tuple(globs)
