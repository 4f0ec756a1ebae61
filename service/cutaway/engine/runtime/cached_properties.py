"""A property that is computed once, without a lock.

`functools.cached_property` holds a lock up to Python 3.11, one for all objects of a class. A property that runs the
model may let other requests run between its passes, and these would wait for the lock for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _CachedProperty(Generic[T]):
    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._function(instance)
        instance.__dict__[self._function.__name__] = value  # found there from now on
        return value


def cached_property(function: Callable[[Any], T]) -> _CachedProperty[T]:
    """Decorates a method whose result is computed at first use, and is then an attribute."""
    return _CachedProperty(function)
