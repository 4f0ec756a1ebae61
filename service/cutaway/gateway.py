"""The gateway: a gRPC server over TorchServe, or over models in this process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutaway.server.embedded import Served, serve

__all__ = ["Served", "serve"]


def __getattr__(name: str) -> Any:
    """Imports `serve` on first use: it needs torch, and a gateway whose models run elsewhere does not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from cutaway.server import embedded
    except ModuleNotFoundError as failure:
        if (failure.name or "").startswith("cutaway"):
            raise
        what = f"{failure.name} is missing; a server in this process needs: pip install 'cutaway[local]'"
        raise ModuleNotFoundError(what, name=failure.name) from None

    return getattr(embedded, name)
