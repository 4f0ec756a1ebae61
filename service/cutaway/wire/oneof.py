"""A ``oneof`` of typed messages and the Python classes that stand for them: a table with a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from cutaway.errors import Reason, at, error

T = TypeVar("T")


class Codec(NamedTuple):
    """How one class travels, both ways.

    Attributes:
        field: its field of the ``oneof``.
        encode: a value to its message, or to a field that is a number.
        decode: its message to the arguments of its class.
    """

    field: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], dict[str, Any]]


class OneOf(Generic[T]):
    """The table.

    Args:
        name: the name of the ``oneof``.
        missing: what to say where none of its fields is set.
        codecs: the rows, which stay to be read.
    """

    def __init__(self, name: str, missing: str, codecs: Mapping[type[T], Codec]) -> None:
        self._name = name
        self._missing = missing
        self.codecs = codecs
        self._kinds: dict[str, type[T]] = {codec.field: kind for kind, codec in codecs.items()}

    def encode(self, value: T, message: Any) -> None:
        """Set the field of ``message`` that ``value`` belongs in.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, for what is of none of the classes.
        """
        codec = self.codecs.get(type(value))
        if codec is None:
            known = ", ".join(kind.__name__ for kind in self.codecs)
            raise error(Reason.INVALID_VALUE, f"{value!r:.80} is none of {known}", self._name)
        with at(codec.field):
            made = codec.encode(value)
        if not isinstance(made, Message):
            setattr(message, codec.field, made)
            return
        there = getattr(message, codec.field)
        there.CopyFrom(made)
        there.SetInParent()  # a message without fields too

    def decode(self, message: Any, **shared: Any) -> T:
        """The value in ``message``, with ``shared`` arguments beside its own.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, where there is none.
        """
        field = message.WhichOneof(self._name)
        if field is None:
            raise error(Reason.INVALID_VALUE, self._missing, self._name)
        kind: Callable[..., T] = self._kinds[field]
        with at(field):
            return kind(**shared, **self.codecs[self._kinds[field]].decode(getattr(message, field)))
