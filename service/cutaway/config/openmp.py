"""How the OpenMP threads of torch wait for work."""

from __future__ import annotations

from collections.abc import MutableMapping

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
"""A thread spins for a sixth of a millisecond, longer than the gap between two operations of a small network, then
sleeps. Threads that sleep at once take 1.4 times as long for a single integrated gradient. Threads that spin as long as
OpenMP's default take the cores from other processes: five times as long if three processes share two cores."""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Sets `WAITING` in ``environment``, unless any of it is set; has an effect before torch is imported."""
    if not environment.keys() & WAITING.keys():
        environment.update(WAITING)
