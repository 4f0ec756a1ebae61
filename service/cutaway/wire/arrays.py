"""Arrays and `cutaway.v1.Tensor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.packing import packed, unpacked
from cutaway.tensors import DTYPES, Array, ArrayLike, as_array, bytes_of, dtype_name, from_bytes, to_bytes
from cutaway.v1 import tensor_pb2
from cutaway.wire.enums import DATA_TYPE_NAMES, DATA_TYPES, decode_compression, encode_compression


def encode(array: Array, compression: str = "") -> tensor_pb2.Tensor:
    """``array`` as a message, its bytes packed where that makes them smaller; one copy."""
    plain = to_bytes(array)
    data = packed(plain, array.itemsize, compression)
    return tensor_pb2.Tensor(
        data_type=DATA_TYPES[dtype_name(array)],
        shape=array.shape,
        data=data,
        compression=encode_compression(compression if len(data) < len(plain) else ""),
    )


def decode(message: tensor_pb2.Tensor) -> Array:
    """The array in ``message``, read-only, without a copy of bytes that are not packed.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``TENSOR_SIZE``, and ``INVALID_VALUE`` for a compression
            that is not known.
    """
    name = type_of(message)
    compression = decode_compression(message.compression, "compression")
    if not compression:
        return from_bytes(name, message.shape, message.data)
    size = bytes_of(name, message.shape)
    with at("data"):
        data = unpacked(message.data, DTYPES[name].itemsize, size, compression)
    return from_bytes(name, message.shape, data)


def type_of(message: tensor_pb2.Tensor) -> str:
    """The name of ``message``'s data type.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``.
    """
    name = DATA_TYPE_NAMES.get(message.data_type)
    if name is None:
        known = ", ".join(f"DATA_TYPE_{known.upper()}" for known in DATA_TYPES)
        raise error(Reason.INPUT_DTYPE, f"data type {message.data_type} is none of {known}", "data_type")
    return name


def encode_given(field: str, given: ArrayLike) -> tensor_pb2.Tensor:
    """What was ``given`` for ``field``, as a message."""
    with at(field):
        return encode(as_array(given))


def decode_required(field: str, message: Any) -> Array:
    """The array in ``field`` of ``message``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` where there is none, or what `decode` raises.
    """
    with at(field):
        if not message.HasField(field):
            raise error(Reason.INVALID_VALUE, "send a tensor")
        return decode(getattr(message, field))


def encode_named(arrays: Mapping[str, Array], compression: str = "") -> list[tensor_pb2.NamedTensor]:
    """Named arrays, in order."""
    return [tensor_pb2.NamedTensor(name=name, tensor=encode(array, compression)) for name, array in arrays.items()]


def decode_named(messages: Iterable[tensor_pb2.NamedTensor]) -> dict[str, Array]:
    """The same, backwards."""
    found = {}
    for message in messages:
        with at(message.name):
            found[message.name] = decode(message.tensor)
    return found
