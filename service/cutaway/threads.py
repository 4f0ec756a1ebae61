"""How OpenMP's threads, which share a tensor's arithmetic, wait for their next piece of it."""

from __future__ import annotations

from collections.abc import MutableMapping

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}
"""Spin for a sixth of a millisecond, which is longer than what lies between two operations of a small network, then
sleep. One that sleeps at once takes 1.4 times as long for a lone integrated gradient. One that spins for as long as
OpenMP's own default takes the cores from whoever else computes: five times as long, where three processes share two."""


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Say so in ``environment``, before torch is loaded; whoever has said something of it already is heard."""
    if not environment.keys() & WAITING.keys():
        environment.update(WAITING)
