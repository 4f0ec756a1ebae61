"""The interface of engines: what starts the workers of a model store, and new ones for those that end."""

from __future__ import annotations

from typing import Protocol

from cutaway.gateway.torchserve.server_process import Endpoint


class Engine(Protocol):
    """Processes with the workers of all models of a store."""

    @property
    def name(self) -> str:
        """For people: ``TorchServe``."""

    @property
    def endpoint(self) -> Endpoint:
        """What is pinged to see whether it replies."""

    def start(self) -> None:
        """Starts the processes; their workers load their models after that."""

    def poll(self) -> int | None:
        """Returns None while it runs, else its exit status."""

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of its processes."""

    def log_tail(self) -> str:
        """Returns the end of its log since the last start; also after it has ended."""

    def stop(self, grace_s: float) -> None:
        """Ends all processes, and deletes their files; they get ``grace_s`` seconds to end by themselves."""
