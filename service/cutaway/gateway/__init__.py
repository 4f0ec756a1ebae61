"""The typed gRPC front door, over TorchServe or over models in this process."""

from cutaway.gateway.embedded import Served, serve

__all__ = ["Served", "serve"]
