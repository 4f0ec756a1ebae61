"""Any method, of noisy copies of the inputs."""

from __future__ import annotations

from cutaway.engine.method import Method


def tunnelled(method: Method) -> Method:
    """What becomes of a row of the table inside a noise tunnel."""
    return method
