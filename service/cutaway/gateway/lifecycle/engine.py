"""The interface of engines: what starts the workers of a model store, and new ones for those that end."""

from __future__ import annotations

from typing import Protocol


class Liveness(Protocol):
    """Watches over an engine until `close`."""

    @property
    def hangs(self) -> bool:
        """Whether it does nothing any more, although it runs."""

    async def close(self) -> None:
        """Ends the watch."""


class Engine(Protocol):
    """Processes with the workers of all models of a store."""

    @property
    def name(self) -> str:
        """For people: ``TorchServe``."""

    def start(self) -> None:
        """Starts the processes; their workers load their models after that."""

    def poll(self) -> int | None:
        """Returns None while it runs, else its exit status."""

    def has_worker(self, pid: int) -> bool:
        """Returns whether ``pid`` is one of its processes; 0 is a worker that may be on another machine."""

    def end_worker(self, pid: int) -> None:
        """Ends one of its processes, which hangs; a new worker follows."""

    def liveness(self, hang_s: float) -> Liveness:
        """Begins to watch it; it hangs if it does nothing for ``hang_s`` seconds. Called in an event loop."""

    def log_tail(self) -> str:
        """Returns the end of its log since the last start; also after it has ended."""

    def stop(self, grace_s: float) -> None:
        """Ends all processes, and deletes their files; they get ``grace_s`` seconds to end by themselves."""
