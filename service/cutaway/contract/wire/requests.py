"""Codecs between requests and `cutaway.v1.InspectRequest`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cutaway.contract.errors import InvalidArgument, Reason, at, error
from cutaway.contract.requests import TCAV, Argument, ConceptExamples, Influence, InspectRequest, Raw
from cutaway.contract.requests.fields import given
from cutaway.contract.results import AttributionResult
from cutaway.contract.tensors import Buffer, as_array, bytes_in, check_compression, dtype_name, from_bytes
from cutaway.contract.values import brief, changed
from cutaway.contract.wire.codec import TENSOR, Codec, FieldRule, by_name, only, record, several, spread
from cutaway.contract.wire.message_walk import (
    check_structure,
    field_of,
    parse,
    places,
    refuse_large_unpacked,
    unpacked_bytes,
    without_fields,
)
from cutaway.contract.wire.methods import ATTACKS, COUNTERFACTUAL, METHODS
from cutaway.contract.wire.oneofs import CAPTURES, EDITS, TARGETS
from cutaway.contract.wire.scalars import COMPRESSION, DATA_TYPES, FLOATING_TYPE, INT64, Scalar
from cutaway.v1 import input_pb2, inspection_pb2, tensor_pb2


def _checked_compression(name: str) -> str:
    check_compression(name)
    return name


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise error(Reason.INVALID_VALUE, f"{seed}; a seed is from 0 to 2**63 - 1")
    return seed


_SEED = Scalar(_checked_seed, _checked_seed)

_OPTIONS = spread(
    InspectRequest,
    inspection_pb2.Options.DESCRIPTOR.fields,
    {
        "reply_data_type": FieldRule(codec=FLOATING_TYPE),
        "compression": FieldRule(
            codec=Scalar(
                lambda name: COMPRESSION.encode(_checked_compression(name)),
                lambda number: _checked_compression(COMPRESSION.decode(number)),
            )
        ),
        "seed": FieldRule(codec=_SEED),
    },
)


def _write_argument(value: Any, message: input_pb2.Argument) -> None:
    value = value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value  # of numpy or torch
    kind = _ARGUMENT_KINDS.get(type(value))
    if kind is None:
        raise error(
            Reason.INVALID_VALUE, f"{brief(value)} is no truth value, number, text or None; send an array as input"
        )
    if value is None:
        message.none.SetInParent()
    else:
        setattr(message, kind, INT64.encode(value) if kind == "integer" else value)


def _read_argument(message: input_pb2.Argument) -> Argument:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise error(Reason.INVALID_VALUE, "give the value: boolean, integer, real, text or none")
    value: Argument = None if kind == "none" else getattr(message, kind)
    return value


_ARGUMENT_KINDS = {bool: "boolean", int: "integer", float: "real", str: "text", type(None): "none"}
_TENSORS = spread(
    InspectRequest, input_pb2.TensorInputs.DESCRIPTOR.fields, {"by_name": FieldRule("tensors", by_name(TENSOR))}
)
_RAW = only(input_pb2.RawInputs.DESCRIPTOR, several(record(Raw, input_pb2.RawInput)))
_EXAMPLES = record(ConceptExamples, inspection_pb2.ConceptExamples)
_CONCEPTS = record(
    TCAV,
    inspection_pb2.Tcav,
    {
        "concepts": FieldRule(codec=by_name(_EXAMPLES)),
        "random": FieldRule(codec=several(_EXAMPLES)),
        "seed": FieldRule(codec=_SEED),
    },
)
_FIELDS = spread(
    InspectRequest,
    [field for field in inspection_pb2.InspectRequest.DESCRIPTOR.fields if field.containing_oneof is None],
    {
        "model": FieldRule(check=given("name the model")),
        "arguments": FieldRule(codec=by_name(Codec(_write_argument, _read_argument))),
        "target": FieldRule(codec=TARGETS.codec),
        "captures": FieldRule(codec=CAPTURES),
        "edits": FieldRule(codec=EDITS),
        "attributions": FieldRule(codec=several(METHODS.codec)),
        "attacks": FieldRule(codec=several(ATTACKS.codec)),
        "options": FieldRule(codec=_OPTIONS),
        "counterfactual": FieldRule(codec=COUNTERFACTUAL),
        "concepts": FieldRule(codec=_CONCEPTS),
        "influence": FieldRule(
            codec=record(
                Influence,
                inspection_pb2.Influence,
                {"training": FieldRule(codec=_EXAMPLES), "seed": FieldRule(codec=_SEED)},
            )
        ),
    },
)
"""All but the input, which is decoded on its own: see `_remembered`."""


def encode(request: InspectRequest) -> inspection_pb2.InspectRequest:
    """Returns ``request`` as a message.

    Raises:
        InvalidArgument: for a value that no message can hold.
    """
    message = inspection_pb2.InspectRequest()
    _FIELDS.write(request, message)
    _check_input(request)
    if request.raw:
        with at("raw"):
            _RAW.write(request.raw, message.raw)
    else:
        message.tensors.SetInParent()
        with at("tensors"):
            _TENSORS.write(request, message.tensors)
    return message


def _check_input(request: InspectRequest) -> None:
    if (request.tensors or request.feature_names) and request.raw:
        raise error(Reason.INVALID_VALUE, "send tensors or raw bytes, not both", "raw")


class SentTensor(NamedTuple):
    """A tensor whose bytes are somewhere else.

    Attributes:
        data_type: its contract name.
        shape: its sizes.
        data: its elements, row-major and little-endian.
    """

    data_type: str
    shape: Sequence[int]
    data: Buffer


def serialize(request: InspectRequest) -> bytes:
    """Returns ``request`` as a serialised message; raises as `encode`. Inputs are copied once, not four times."""
    _check_input(request)
    message = encode(changed(request, tensors={}, raw=()))
    names = message.tensors.SerializeToString()
    message.ClearField("tensors")
    if request.raw:
        return with_examples(message, ((example.data, example.media_type) for example in request.raw))
    with at("tensors"):
        return with_tensors(message, ((name, _sent(array)) for name, array in request.tensors.items()), names)


def _sent(value: Any) -> SentTensor:
    array = as_array(value)
    return SentTensor(dtype_name(array), array.shape, bytes_in(array))


def with_tensors(
    message: inspection_pb2.InspectRequest, tensors: Iterable[tuple[str, SentTensor]], rest: bytes = b""
) -> bytes:
    """Serialises ``message``, which has no input, with tensors by name; ``rest`` are other fields of `TensorInputs`."""
    entries: list[Buffer] = [rest]
    for name, (data_type, shape, data) in tensors:
        head = tensor_pb2.Tensor(data_type=DATA_TYPES[data_type], shape=shape).SerializeToString()
        tensor = [head, *field_of(tensor_pb2.Tensor.DATA_FIELD_NUMBER, data)]
        entries += field_of(_BY_NAME, *field_of(_KEY, name.encode()), *field_of(_VALUE, *tensor))
    return b"".join([message.SerializeToString(), *field_of(message.TENSORS_FIELD_NUMBER, *entries)])


def with_examples(message: inspection_pb2.InspectRequest, examples: Iterable[tuple[Buffer, str]]) -> bytes:
    """Serialises ``message``, which has no input, with examples: bytes and their media type."""
    entries: list[Buffer] = []
    for data, media_type in examples:
        rest = input_pb2.RawInput(media_type=media_type).SerializeToString()
        example = field_of(input_pb2.RawInput.DATA_FIELD_NUMBER, data)
        entries += field_of(input_pb2.RawInputs.EXAMPLES_FIELD_NUMBER, *example, rest)
    return b"".join([message.SerializeToString(), *field_of(message.RAW_FIELD_NUMBER, *entries)])


_BY_NAME = input_pb2.TensorInputs.BY_NAME_FIELD_NUMBER
_KEY, _VALUE = 1, 2  # of the entries of a map


def decode(data: bytes, *, max_unpacked_bytes: int | None = None) -> InspectRequest:
    """Returns the request in a serialised `cutaway.v1.InspectRequest`.

    Args:
        data: the message.
        max_unpacked_bytes: that its compressed tensors may have together once unpacked; None for any number.

    Raises:
        InvalidArgument: the bytes are no such message, or a field holds a value that is not allowed.
        ResourceExhausted: ``REQUEST_TOO_LARGE``, once unpacked.
    """
    return _decode(data, max_unpacked_bytes, in_place=False).request


def decode_in_place(data: bytes, *, max_unpacked_bytes: int | None = None) -> Decoded:
    """Decodes as `decode` does, but returns errors of single attributions in ``failed``, if the request allows that."""
    return _decode(data, max_unpacked_bytes, in_place=True)


def _decode(data: bytes, max_unpacked_bytes: int | None, *, in_place: bool) -> Decoded:
    """Returns the decoded request. Only the data of tensors are read, if the rest was read before."""
    if (again := _read_again(data, max_unpacked_bytes, in_place)) is not None:
        return again
    message = parse(inspection_pb2.InspectRequest, data)
    kind = message.WhichOneof("input")
    sent: Any = getattr(message, kind or "tensors")
    if kind is not None:
        check_structure(sent, kind)
    rest = _decode_rest(without_input(data), in_place)
    if kind is None:
        raise error(Reason.INPUT_MISSING, "send tensors by name, or raw bytes", "tensors")
    refuse_large_unpacked(rest.unpacked_bytes + unpacked_bytes(sent), max_unpacked_bytes)
    with at(kind):
        if kind == "tensors":
            asked = rest._replace(request=rest.request.with_input(**_TENSORS.read(sent)))
            if not any(tensor.compression for tensor in sent.by_name.values()):
                _remember(data, in_place, asked)
            return asked
        if not sent.examples:
            raise error(Reason.INPUT_EMPTY, "raw holds no example; send at least one", "examples")
        return rest._replace(request=rest.request.with_input(raw=_RAW.read(sent)))


def validated(request: InspectRequest) -> InspectRequest:
    """Returns ``request`` as `decode` returns it to a worker, without encoding its inputs.

    Raises:
        InvalidArgument: a field has a value that a message cannot hold, or that `decode` refuses.
    """
    message = encode(changed(request, tensors={}, raw=()))
    message.ClearField("tensors")
    rest = _decode_rest(message.SerializeToString(deterministic=True))
    return rest.request.with_input(request.tensors, request.raw, request.feature_names)


class Decoded(NamedTuple):
    """A request.

    Attributes:
        request: without the attributions that failed.
        unpacked_bytes: the size of the compressed tensors in it, its input aside, once they are unpacked.
        failed: the errors of attributions with a value that is not allowed, by number in the message.
    """

    request: InspectRequest
    unpacked_bytes: int
    failed: Mapping[int, AttributionResult]


_INPUT = frozenset(field.number for field in inspection_pb2.InspectRequest.DESCRIPTOR.oneofs_by_name["input"].fields)


def without_input(data: bytes) -> bytes:
    """Returns a serialised request without its input, which is not parsed.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``.
    """
    try:
        return without_fields(data, _INPUT)
    except LookupError:  # what protobuf reads all the same
        message = parse(inspection_pb2.InspectRequest, data)
        for name in ("tensors", "raw"):
            message.ClearField(name)
        return message.SerializeToString(deterministic=True)


def _decode_rest(data: bytes, in_place: bool = False) -> Decoded:
    return (_remembered if len(data) <= _MAX_REMEMBERED_BYTES else _decode_bytes)(data, in_place)


def _decode_bytes(data: bytes, in_place: bool) -> Decoded:
    """Decodes a request without its input. ``in_place`` moves wrong attributions to ``failed``, on request."""
    message = parse(inspection_pb2.InspectRequest, data)
    check_structure(message)
    size = unpacked_bytes(message)
    failed = _take_failed(message) if in_place and message.attribution_errors_in_place else {}
    request = InspectRequest(**_FIELDS.read(message))
    if request.compare and not request.edits:
        raise error(Reason.INVALID_VALUE, "comparing needs edits: without them both models are the same", "compare")
    return Decoded(request, size, failed)


def _take_failed(message: inspection_pb2.InspectRequest) -> dict[int, AttributionResult]:
    """Removes the attributions with a value that is not allowed, and returns their errors by number."""
    failed = {}
    for number, sent in enumerate(message.attributions):
        try:
            with at(f"attributions[{number}]"):
                METHODS.codec.read(sent)
        except InvalidArgument as failure:
            name = sent.WhichOneof("method") or ""
            method, layer = (
                METHODS.kinds[name].__name__ if name else "",
                getattr(getattr(sent, name, None), "layer", ""),
            )
            failed[number] = AttributionResult.failed(method, layer, failure)
    for number in sorted(failed, reverse=True):
        del message.attributions[number]
    return failed


_MAX_REMEMBERED_BYTES = 1 << 14

_remembered = lru_cache(maxsize=256)(_decode_bytes)
"""Most callers send the same request with one input after another."""


class _Known(NamedTuple):
    """A request that was read before.

    Attributes:
        decoded: the request without its tensors.
        around: its bytes around the data of tensors, each with the place where they begin.
        tensors: name, data type and shape of each tensor, and where its data begin and end.
    """

    decoded: Decoded
    around: Sequence[tuple[bytes, int]]
    tensors: Sequence[tuple[str, str, tuple[int, ...], int, int]]


_MOST_ALIKE, _MOST_LENGTHS, _MOST_AROUND = 16, 64, 1 << 12
_known: dict[tuple[int, bool], list[_Known]] = {}
"""Requests that were read before, by their length: one with the same bytes around its data differs in numbers alone."""


def _read_again(data: bytes, max_unpacked_bytes: int | None, in_place: bool) -> Decoded | None:
    """Returns the request in ``data``; None if none was read before that differs in the data of its tensors alone."""
    for decoded, around, tensors in _known.get((len(data), in_place), ()):
        if all(data.startswith(part, begin) for part, begin in around):
            refuse_large_unpacked(decoded.unpacked_bytes, max_unpacked_bytes)
            view = memoryview(data)
            read = {name: from_bytes(kind, shape, view[begin:end]) for name, kind, shape, begin, end in tensors}
            return decoded._replace(request=changed(decoded.request, tensors=read))
    return None


def _remember(data: bytes, in_place: bool, decoded: Decoded) -> None:
    """Remembers the request in ``data`` for `_read_again`, if the data of each tensor are there once; they are not
    compressed. Booleans are not remembered: their bytes may be invalid."""
    alike, tensors = _known.get((len(data), in_place), []), decoded.request.tensors
    if len(alike) >= _MOST_ALIKE:
        return
    view, number = memoryview(data), inspection_pb2.InspectRequest.TENSORS_FIELD_NUMBER
    found: dict[str, tuple[str, str, tuple[int, ...], int, int]] = {}
    entries = [*places(view, number, _BY_NAME)]
    for entry, begin in entries:
        keys = [*places(entry, _KEY)]
        values = [*places(entry, _VALUE, tensor_pb2.Tensor.DATA_FIELD_NUMBER, begin=begin)]
        if len(keys) == 1 and len(values) == 1:
            name, (value, start) = str(keys[0][0], "utf-8"), values[0]
            array = tensors.get(name)
            if array is not None and len(value) == array.nbytes and array.dtype != bool:
                found[name] = name, dtype_name(array), array.shape, start, start + len(value)
    rest = len(data) - sum(end - start for *_, start, end in found.values())
    if rest > _MOST_AROUND or not len(found) == len(entries) == len(tensors):
        return
    edges = [0, *(edge for *_, start, end in found.values() for edge in (start, end)), len(data)]
    around = [(data[start:end], start) for start, end in zip(edges[::2], edges[1::2])]
    asked = decoded._replace(request=changed(decoded.request, tensors={}))
    if not alike and len(_known) >= _MOST_LENGTHS:
        _known.clear()
    _known[len(data), in_place] = [*alike, _Known(asked, around, [found[name] for name in tensors])]
