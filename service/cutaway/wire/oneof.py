"""Codecs of messages with a ``oneof``: each of its fields stands for a subclass of one dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cutaway.errors import Reason, at, error
from cutaway.wire.codec import Codec, FieldRule, Rules, Spread, spread

T = TypeVar("T")


class OneOf(Generic[T]):
    """The codec of a message with a ``oneof``, each field of which stands for one subclass of a dataclass.

    Args:
        base: the base class; the fields outside of the ``oneof`` carry its attributes.
        message: the message type.
        oneof: the name of the ``oneof``.
        missing: the error message where no field of it is set.
        kinds: the subclasses, by the name of their field.
        rules: what is special about the fields, those of the subclasses' messages included.
        special: by class, rules that hold for it and for the classes derived from it only; or, where its message is
            converted by hand, how.
        checks: by subclass, raises `InvalidArgument` for an instance that is not allowed.
        default: the subclass that is meant where no field of the ``oneof`` is set.

    Attributes:
        kinds: the subclasses, by the name of their field.
        codec: the codec. It raises `InvalidArgument` with ``INVALID_VALUE`` for an instance of another class, and for
            a message where no field of the ``oneof`` is set.
    """

    def __init__(
        self,
        base: type[T],
        message: type[Message],
        oneof: str,
        missing: str,
        kinds: Mapping[str, type[T]],
        *,
        rules: Rules | None = None,
        special: Mapping[type, Rules | Spread] | None = None,
        checks: Mapping[type, Callable[[Any], None]] | None = None,
        default: type[T] | None = None,
    ) -> None:
        self.kinds = kinds
        self._names = {kind: name for name, kind in kinds.items()}
        self._oneof = oneof
        self._missing = missing
        self._checks = checks or {}
        self._default = default
        inside = {field.name: field for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields}
        outside = [field for field in message.DESCRIPTOR.fields if field.name not in inside]
        self._messages = {name for name, field in inside.items() if field.message_type}
        self._shared = spread(base, outside, rules or {})
        self._own = {
            name: spread(kind, [inside[name]], _variant(kind, inside[name], rules or {}, special or {}))
            for name, kind in kinds.items()
        }

        self.codec = Codec(self._write, self._read)

    def _write(self, value: T, message: Any) -> None:
        name = self._names.get(type(value))
        if name is None:
            known = ", ".join(kind.__name__ for kind in self._names)
            raise error(Reason.INVALID_VALUE, f"{value!r:.80} is none of {known}", self._oneof)
        self._shared.write(value, message)
        if name in self._messages:
            getattr(message, name).SetInParent()  # also if it stays empty
        self._own[name].write(value, message)

    def _read(self, message: Any) -> T:
        name = message.WhichOneof(self._oneof)
        arguments = self._shared.read(message)
        if name is None:
            if self._default is None:
                raise error(Reason.INVALID_VALUE, self._missing, self._oneof)
            return self._default(**arguments)
        kind = self.kinds[name]
        value = kind(**arguments, **self._own[name].read(message))
        if kind in self._checks:
            with at(name):
                self._checks[kind](value)
        return value


def _variant(kind: type, field: FieldDescriptor, rules: Rules, special: Mapping[type, Rules | Spread]) -> Rules:
    """The rules for ``field`` of a ``oneof``: either its message holds the attributes of ``kind``, or it is one."""
    for narrower, more in special.items():
        if issubclass(kind, narrower):
            if isinstance(more, Spread):
                return {field.name: FieldRule(codec=more)}
            rules = {**rules, **more}
    if field.message_type is None:
        return rules
    return {field.name: FieldRule(codec=spread(kind, field.message_type.fields, rules))}
