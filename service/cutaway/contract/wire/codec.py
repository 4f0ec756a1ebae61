"""Codecs between dataclasses and protobuf messages, built once per class from the fields of both.

A field of a message is converted to and from the attribute of the same name, as its protobuf type and the attribute's
type say. A message is a dataclass. An annotation such as `cutaway.contract.requests.fields.Count` checks what is read.
A `FieldRule` says where a field needs more than that. Every error carries the path of the field: ``edits[1].rows[2]``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cutaway.contract.errors import CutawayError, Reason, at, error, of_text
from cutaway.contract.requests import field_name
from cutaway.contract.values import brief
from cutaway.contract.wire import scalars
from cutaway.contract.wire.scalars import ENUMS, NUMBERS, UNSET, Scalar, unchanged
from cutaway.v1 import tensor_pb2

# Codecs of messages with a ``oneof``: each of its fields stands for a subclass of one dataclass.

T = TypeVar("T")


class OneOf(Generic[T]):
    """The codec of a message with a ``oneof``, each field of which stands for one subclass of a dataclass.

    Args:
        base: the base class; the fields outside of the ``oneof`` carry its attributes.
        message: the message type.
        oneof: the name of the ``oneof``.
        missing: the error message where no field of it is set.
        named: subclasses by the name of their field, where that does not follow from the class' name.
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
        *,
        named: Mapping[str, type[T]] | None = None,
        rules: Rules | None = None,
        special: Mapping[type, Rules | Spread] | None = None,
        checks: Mapping[type, Callable[[Any], None]] | None = None,
        default: type[T] | None = None,
    ) -> None:
        self._oneof = oneof
        self._missing = missing
        self._checks = checks or {}
        self._default = default
        inside = {field.name: field for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields}
        classes = {field_name(kind): kind for kind in _leaves(base)} | dict(named or {})
        self.kinds = {name: classes[name] for name in inside}
        self._names = {kind: name for name, kind in self.kinds.items()}
        outside = [field for field in message.DESCRIPTOR.fields if field.name not in inside]
        self._messages = {name for name, field in inside.items() if field.message_type}
        self._shared = spread(base, outside, rules or {})
        self._own = {
            name: spread(kind, [inside[name]], _variant(kind, inside[name], rules or {}, special or {}))
            for name, kind in self.kinds.items()
        }

        self.codec = Codec(self._write, self._read)

    def _write(self, value: T, message: Any) -> None:
        name = self._names.get(type(value))
        if name is None:
            known = ", ".join(kind.__name__ for kind in self._names)
            raise error(Reason.INVALID_VALUE, f"{brief(value)} is none of {known}", self._oneof)
        self._shared.write(value, message)
        if name in self._messages:
            getattr(message, name).SetInParent()  # also if it stays empty
        self._own[name].write(value, message)

    def _read(self, message: Any) -> T:
        """Returns an instance of the subclass whose ``oneof`` field is set, with the attributes of the base class."""
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


def _leaves(base: type[T]) -> Iterator[type[T]]:
    """Yields the classes of `cutaway.contract.requests` below ``base`` that none is derived from."""
    narrower = [kind for kind in base.__subclasses__() if kind.__module__.startswith("cutaway.contract.requests.")]
    if not narrower:
        yield base
    for kind in narrower:
        yield from _leaves(kind)


def _variant(kind: type, field: FieldDescriptor, rules: Rules, special: Mapping[type, Rules | Spread]) -> Rules:
    """Returns the rules for ``field`` of a ``oneof``, which holds the attributes of ``kind`` or is a ``kind``."""
    for narrower, more in special.items():
        if issubclass(kind, narrower):
            if isinstance(more, Spread):
                return {field.name: FieldRule(codec=more)}
            rules = {**rules, **more}
    if field.message_type is None:
        return rules
    return {field.name: FieldRule(codec=spread(kind, field.message_type.fields, rules))}


class Codec(NamedTuple):
    """A converter of values to messages, or to the containers of repeated and map fields, and back.

    Attributes:
        write: takes a value, and the empty message or container to fill.
        read: takes the message or container, and returns the value.
        refuses_empty: whether `write` raises for a value without elements.
    """

    write: Callable[[Any, Any], None]
    read: Callable[[Any], Any]
    refuses_empty: bool = False


class Spread(NamedTuple):
    """A converter of some attributes of a dataclass to the fields of one message, and back.

    Attributes:
        write: takes an instance of the dataclass, and the message to fill.
        read: takes the message, and returns arguments for the dataclass; fields that are not set are left out.
    """

    write: Callable[[Any, Any], None]
    read: Callable[[Any], dict[str, Any]]


class FieldRule(NamedTuple):
    """A rule for a field of a message whose conversion does not follow from its type.

    Attributes:
        attribute: the attribute of the dataclass, where its name differs.
        codec: how its value is converted.
        check: raises `InvalidArgument` for a value, as read from a message, that is not allowed.
    """

    attribute: str = ""
    codec: Scalar | Codec | Spread | None = None
    check: Callable[[Any], object] | None = None


Rules: TypeAlias = Mapping[str, FieldRule]
"""The rules of a message by field name."""

_UNIONS = (Union, types.UnionType)

_CONTAINERS = (tuple, dict)

_Put: TypeAlias = Callable[[Any, Any], None]
_Take: TypeAlias = Callable[[Any], Any]

TENSOR = Codec(scalars.write, scalars.read)
"""The codec of `cutaway.v1.Tensor`."""

REQUIRED_TENSOR = FieldRule(codec=Codec(scalars.write, scalars.read_required))
"""The rule for a tensor that may not be left out."""


def record(kind: type, message: type[Message], rules: Rules | None = None) -> Codec:
    """Returns the codec of a dataclass whose attributes are the fields of ``message``, but for ``rules``."""
    return _record(kind, message.DESCRIPTOR, rules or {})


def _record(kind: type, message: Any, rules: Rules) -> Codec:
    """Returns the codec of the dataclass ``kind``. Reads faster if all fields are plain and in the same order."""
    descriptors = message.fields
    write, read = spread(kind, descriptors, rules)
    names = [field.name for field in descriptors]
    if not rules and all(map(_is_plain, descriptors)) and names == [attribute.name for attribute in fields(kind)]:
        get = attrgetter(*names)  # twice as fast; a reply has many of these
        return Codec(write, lambda filled: kind(*get(filled)))
    return Codec(write, lambda filled: kind(**read(filled)))


def _is_plain(field: FieldDescriptor) -> bool:
    """Returns whether a dataclass may have the value of ``field`` as it is."""
    simple = field.message_type is None and field.enum_type is None
    return simple and not field.is_repeated and not field.has_presence


def spread(kind: type, descriptors: Iterable[FieldDescriptor], rules: Rules) -> Spread:
    """Returns the converter between the fields ``descriptors`` of a message and the attributes of a dataclass."""
    puts: list[tuple[str, _Put]] = []
    takes: list[tuple[str, str, _Take]] = []
    parts: list[tuple[str, Spread]] = []
    for field in descriptors:
        rule = rules.get(field.name, FieldRule())
        if isinstance(rule.codec, Spread):
            parts.append((field.name, rule.codec))
            continue
        attribute = rule.attribute or field.name
        put, take = _access(kind, field, attribute, rule)
        puts.append((field.name, put))
        takes.append((field.name, attribute, take))

    def write(value: Any, message: Any) -> None:
        name = ""
        try:
            for name, put in puts:  # noqa: B007 - the path of an error needs it
                put(value, message)
            for name, part in parts:
                part.write(value, getattr(message, name))
        except CutawayError as failure:
            failure.prefix(name)
            raise
        except UnicodeEncodeError as failure:
            raise of_text(failure, name) from None

    def read(message: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        name = ""
        try:
            for name, attribute, take in takes:  # noqa: B007 - as above
                value = take(message)
                if value is not UNSET:
                    arguments[attribute] = value
            for name, part in parts:
                arguments.update(part.read(getattr(message, name)))
        except CutawayError as failure:
            failure.prefix(name)
            raise
        return arguments

    return Spread(write, read)


def several(element: Scalar | Codec) -> Codec:
    """Returns the codec of a repeated field, for a tuple."""
    if isinstance(element, Scalar):
        encode, decode = element
        return Codec(
            lambda values, container: container.extend(convert_each(encode, _iterable(values))),
            tuple if decode is unchanged else lambda container: tuple(convert_each(decode, container)),
        )

    def write(values: Any, container: Any) -> None:
        convert_each(lambda value: element.write(value, container.add()), _iterable(values))

    def read(container: Any) -> tuple[Any, ...]:
        return tuple(convert_each(element.read, container))

    return Codec(write, read)


def _iterable(values: Any) -> Iterator[Any]:
    try:
        iterator: Iterator[Any] = iter(values)
        return iterator
    except TypeError:
        raise error(Reason.INVALID_VALUE, f"{values!r:.80} is not several; put it in a tuple") from None


def convert_each(convert: Callable[[Any], Any], elements: Iterable[Any]) -> list[Any]:
    """Returns what ``convert`` returns for each element; the path of an error begins with the index: ``[2]``."""
    values: list[Any] = []
    try:
        values.extend(map(convert, elements))
    except CutawayError as failure:
        failure.prefix(f"[{len(values)}]")
        raise
    return values


def by_name(value: Codec) -> Codec:
    """Returns the codec of a map field whose values are messages, for a dict."""

    def write(values: Any, container: Any) -> None:
        for name, element in values.items():
            with at(name):
                value.write(element, container[name])

    def read(container: Any) -> dict[str, Any]:
        values = {}
        for name, message in container.items():
            with at(name):
                values[name] = value.read(message)
        return values

    return Codec(write, read)


def only(message: Descriptor, codec: Codec | None = None) -> Codec:
    """Returns the codec of a message that stands for the value of its only field, which is repeated or a map.

    Args:
        message: the message type.
        codec: of the field; None for the one that follows from its type.
    """
    (field,) = message.fields
    name = field.name
    of_field = codec or _default(field)

    def write(value: Any, filled: Any) -> None:
        with at(name):
            of_field.write(value, getattr(filled, name))

    def read(filled: Any) -> Any:
        with at(name):
            return of_field.read(getattr(filled, name))

    return Codec(write, read)


def _default(field: FieldDescriptor, hint: Any = None) -> Any:
    """Returns the codec for ``field`` where no rule names one: by its protobuf type, and ``hint``, its Python type."""
    message = field.message_type
    one: Scalar | Codec
    if message is None:
        one = ENUMS[field.enum_type.name] if field.enum_type else NUMBERS[field.cpp_type]
    elif message is tensor_pb2.Tensor.DESCRIPTOR:
        one = TENSOR
    elif message.GetOptions().map_entry:
        return by_name(_default(message.fields_by_name["value"]))
    elif part := _dataclass_in(hint, is_several=field.is_repeated):
        one = _record(part, message, {})
    elif len(message.fields) == 1:
        one = only(message)
    else:
        raise TypeError(f"{field.full_name} needs a rule")
    return several(one) if field.is_repeated else one


def _dataclass_in(hint: Any, *, is_several: bool) -> type | None:
    """Returns ``X`` for ``X`` and ``X | None``, or for ``tuple[X, ...]``, where it is a dataclass."""
    inner = get_args(hint) if get_origin(hint) in ((tuple,) if is_several else _UNIONS) else (hint,)
    return next((argument for argument in inner if isinstance(argument, type) and is_dataclass(argument)), None)


def _access(kind: type, field: FieldDescriptor, attribute: str, rule: FieldRule) -> tuple[_Put, _Take]:
    """Returns two functions: the first writes ``attribute`` to ``field``, the second reads and checks ``field``."""
    hint = type_hints(kind).get(attribute)
    codec: Any = rule.codec or _default(field, hint)
    (default,) = (
        UNSET if parameter.default is MISSING and parameter.default_factory is MISSING else parameter.default
        for parameter in fields(kind)
        if parameter.name == attribute
    )
    if isinstance(codec, Scalar):
        put, take = _scalar_access(field, attribute, codec, default)
    elif field.is_repeated:
        put, take = _container_access(field.name, attribute, codec)
    else:
        put, take = _message_access(field.name, attribute, codec, default)
    for check in [rule.check, *_checks(hint)]:
        take = _checked(take, check) if check else take
    return put, take


@cache
def type_hints(kind: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, with their annotations."""
    return get_type_hints(kind, include_extras=True)


def _checks(hint: Any) -> list[Callable[[Any], object]]:
    """Returns the checks in an annotated type, or in one that may also be None."""
    if get_origin(hint) is Annotated:
        return [check for check in get_args(hint)[1:] if callable(check)]
    return _checks(get_args(hint)[0]) if get_origin(hint) in _UNIONS else []


def _checked(take: _Take, check: Callable[[Any], object]) -> _Take:
    """Returns ``take`` with ``check`` run on every value that it reads, but not on a field that was never set."""

    def taken(message: Any) -> Any:
        value = take(message)
        if value is not UNSET:
            check(value)
        return value

    return taken


def _scalar_access(field: FieldDescriptor, attribute: str, codec: Scalar, default: object) -> tuple[_Put, _Take]:
    """Returns the functions that write and read a scalar field.

    A field with presence stays unset for ``""``, and for None where None is the attribute's default.
    """
    name = field.name
    encode, decode = codec
    get = attrgetter(name)
    if not field.has_presence:
        return (
            lambda owner, message: setattr(message, name, encode(getattr(owner, attribute))),
            get if decode is unchanged else lambda message: decode(get(message)),
        )

    def put(owner: Any, message: Any) -> None:
        value = getattr(owner, attribute)
        if not (value is None and default is None) and value != "" and (sent := encode(value)) is not UNSET:
            setattr(message, name, sent)

    return put, lambda message: decode(get(message)) if message.HasField(name) else UNSET


def _container_access(name: str, attribute: str, codec: Codec) -> tuple[_Put, _Take]:
    write, read, refuses_empty = codec

    def put(owner: Any, message: Any) -> None:
        value = getattr(owner, attribute)
        if type(value) not in _CONTAINERS or value or refuses_empty:  # most fields of a reply are empty
            write(value, getattr(message, name))

    return put, lambda message: read(getattr(message, name))


def _message_access(name: str, attribute: str, codec: Codec, default: object) -> tuple[_Put, _Take]:
    """Returns the functions that write an attribute into a submessage, and read it back.

    ``default`` is that of the attribute: UNSET if it has none, and None if an absent message means None.
    """
    write, read = codec.write, codec.read

    def put(owner: Any, message: Any) -> None:
        value = getattr(owner, attribute)
        if value is not None or default is not None:
            part = getattr(message, name)
            if default is None:
                part.SetInParent()  # also if it stays empty
            write(value, part)

    def take(message: Any) -> Any:
        return read(getattr(message, name)) if default is UNSET or message.HasField(name) else UNSET

    return put, take
