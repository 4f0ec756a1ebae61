"""The typed gRPC front door, over TorchServe or over models in this process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.gateway.embedded import Served, serve

__all__ = ["Served", "serve"]


def __getattr__(name: str) -> Any:
    """What serves models of this process, imported once it is asked for: a front door before models elsewhere needs no
    torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cutaway.gateway import embedded

    return getattr(embedded, name)
