"""Packages that the base install does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.errors import Reason, error


@contextmanager
def importing(purpose: str) -> Iterator[None]:
    """Imports in this block need a package of the extra ``notebook``.

    Raises:
        FailedPrecondition: ``PACKAGE_MISSING``, with the package, ``purpose`` and what to install.
    """
    try:
        yield
    except ModuleNotFoundError as failure:
        package = {"PIL": "pillow"}.get(failure.name or "", failure.name)
        what = f"{purpose} needs {package}, which is not installed: pip install 'cutaway[notebook]'"
        raise error(Reason.PACKAGE_MISSING, what) from None
