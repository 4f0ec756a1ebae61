"""Captum, wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from captum import attr
from torch import Tensor

Values: TypeAlias = Callable[[Tensor], Tensor]
Arguments: TypeAlias = Callable[[Any, dict[str, Any]], Any]


@contextmanager
def spoiled(
    kind: type,
    values: Values = lambda values: values,
    arguments: Arguments = lambda method, options: None,
    inputs: Values = lambda values: values,
    together: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda found: found,
) -> Iterator[None]:
    """A fault in the class that answers ``kind``, be it called as it is or as a noise tunnel calls what is inside.

    Args:
        kind: a request's class, or Captum's own.
        values: changes what ``attribute`` returned.
        arguments: changes the arguments of ``attribute``; gets Captum's object and the keyword arguments.
        inputs: changes the inputs that Captum explains.
        together: changes what was returned for several inputs, all at once.
    """
    captums: Any = getattr(attr, kind.__name__)

    def wrong(intact: Any) -> Any:
        def attribute(self: Any, given: Any, **options: Any) -> Any:
            arguments(self, options)
            taken = tuple(map(inputs, given)) if isinstance(given, tuple) else inputs(given)
            found = intact(self, taken, **options)
            return together(tuple(map(values, found))) if isinstance(found, tuple) else values(found)

        return attribute

    spoilt = wrong(captums.attribute)
    if hasattr(captums.attribute, "__wrapped__"):
        spoilt.__wrapped__ = wrong(captums.attribute.__wrapped__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captums, "attribute", spoilt)
        yield


@contextmanager
def stale(kind: type) -> Iterator[None]:
    """The first answer of ``kind``, given again to whoever asks later."""
    kept: list[Tensor] = []

    def first(values: Tensor) -> Tensor:
        kept.append(values)
        return kept[0]

    with spoiled(kind, values=first):
        yield
