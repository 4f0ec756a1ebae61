"""Arrays and `cutaway.v1.Tensor`."""

from __future__ import annotations

from cutaway.errors import Reason, at, error
from cutaway.schema.compression import compress, decompress
from cutaway.schema.tensors import DTYPES, Array, ArrayLike, as_array, bytes_of, dtype_name, from_bytes
from cutaway.v1 import tensor_pb2
from cutaway.wire.enums import COMPRESSION, DATA_TYPE_NAMES, DATA_TYPES


def write(array: ArrayLike, message: tensor_pb2.Tensor, compression: str = "") -> None:
    """Fills ``message`` with ``array``, its bytes compressed with ``compression`` where that makes them fewer."""
    array = as_array(array)
    name = dtype_name(array)
    message.data_type = DATA_TYPES[name]
    message.shape.extend(array.shape)
    plain = array.astype(DTYPES[name], copy=False).tobytes()
    if not compression:
        message.data = plain
        return
    data = compress(plain, array.itemsize, compression)
    message.data = data
    if len(data) < len(plain):
        message.compression = COMPRESSION.encode(compression)


def read(message: tensor_pb2.Tensor) -> Array:
    """Returns the array in ``message``, read-only, without a copy of bytes that are not compressed.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``TENSOR_SIZE``, and ``INVALID_VALUE`` for a compression
            that is not known.
    """
    name = data_type_of(message)
    with at("compression"):
        compression = COMPRESSION.decode(message.compression)
    if not compression:
        return from_bytes(name, message.shape, message.data)
    size = bytes_of(name, message.shape)
    with at("data"):
        data = decompress(message.data, DTYPES[name].itemsize, size, compression)
    return from_bytes(name, message.shape, data)


def read_required(message: tensor_pb2.Tensor) -> Array:
    """Returns the array in ``message``.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` where there is none, or what `read` raises.
    """
    if not message.ListFields():
        raise error(Reason.INVALID_VALUE, "send a tensor")
    return read(message)


def data_type_of(message: tensor_pb2.Tensor) -> str:
    """Returns the name of the data type of ``message``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``.
    """
    name = DATA_TYPE_NAMES.get(message.data_type)
    if name is None:
        known = ", ".join(f"DATA_TYPE_{known.upper()}" for known in DATA_TYPES)
        raise error(Reason.INPUT_DTYPE, f"data type {message.data_type} is none of {known}", "data_type")
    return name
