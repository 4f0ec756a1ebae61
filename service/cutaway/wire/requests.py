"""Questions and `cutaway.v1.InspectRequest`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from google.protobuf.message import DecodeError

from cutaway.errors import Reason, at, error
from cutaway.packing import refuse_unknown
from cutaway.requests import CheckRequest, ExplainIf, InspectRequest, Raw, Target
from cutaway.tensors import Array
from cutaway.v1 import check_pb2, input_pb2, inspection_pb2, target_pb2
from cutaway.wire import arrays, captures, edits, methods, targets
from cutaway.wire.enums import (
    CHECK_MODES,
    decode_compression,
    decode_floating,
    encode_compression,
    encode_floating,
)
from cutaway.wire.numbers import INT64, wholes
from cutaway.wire.repeated import each
from cutaway.wire.strict import refuse_swelling, refuse_unserved


def encode(request: InspectRequest) -> inspection_pb2.InspectRequest:
    """``request`` as a message.

    Raises:
        InvalidArgument: for what the message cannot say.
    """
    if request.tensors and request.raw:
        raise error(Reason.INVALID_VALUE, "send tensors or raw bytes, not both", "raw")
    if not 0 <= request.max_reply_bytes < 2**64:
        raise error(Reason.INVALID_VALUE, f"{request.max_reply_bytes} bytes; from 0 up", "options.max_reply_bytes")
    if request.seed is not None:
        _seed(request.seed)
    with at("options.compression"):
        refuse_unknown(request.compression)
    message = inspection_pb2.InspectRequest(
        model=request.model,
        target=_encode_target(request.target),
        captures=each("captures", captures.encode, request.captures),
        edits=each("edits", edits.encode, request.edits),
        compare=request.compare,
        attributions=each("attributions", methods.encode, request.attributions),
        explain_if=_encode_condition(request.explain_if),
        check=check_pb2.CheckRequest(
            mode=CHECK_MODES.to_wire(request.check.mode, "check.mode"),
            relative_tolerance=request.check.relative_tolerance,
        ),
        options=inspection_pb2.Options(
            max_reply_bytes=request.max_reply_bytes,
            omit_predictions=request.omit_predictions,
            seed=request.seed,
            reply_data_type=encode_floating(request.reply_data_type, "options.reply_data_type"),
            compression=encode_compression(request.compression),
            dry_run=request.dry_run,
        ),
    )
    if request.raw:
        examples = [input_pb2.RawInput(data=raw.data, media_type=raw.media_type) for raw in request.raw]
        message.raw.CopyFrom(input_pb2.RawInputs(examples=examples))
    else:
        message.tensors.SetInParent()
        for name, array in request.tensors.items():
            with at(f"tensors.by_name.{name}"):
                message.tensors.by_name[name].CopyFrom(arrays.encode(array))
    if request.input_gradients is not None:
        message.input_gradients.CopyFrom(inspection_pb2.InputGradientRequest(inputs=request.input_gradients))
    return message


def decode(data: bytes, *, most: int | None = None) -> InspectRequest:
    """The question in a serialised `cutaway.v1.InspectRequest`.

    Args:
        data: the message.
        most: bytes that its packed tensors may have once unpacked, all together; None is any number.

    Raises:
        InvalidArgument: the bytes are no such message, or a field holds what it must not.
        Unimplemented: a field is set that is not served yet.
        ResourceExhausted: ``REQUEST_TOO_LARGE``, once unpacked.
    """
    message = parsed(data)
    tensors, raw = message.tensors, message.raw  # they live on when they are no longer part of it
    given = message.WhichOneof("input")
    if given is not None:
        refuse_unserved(getattr(message, given), given)
        message.ClearField(given)
    asked = message.SerializeToString(deterministic=True)
    question = (_remembered if len(asked) <= _SHORT else _question)(asked)
    if given is None:
        raise error(Reason.INPUT_MISSING, "send tensors by name, or raw bytes", "tensors")
    refuse_swelling((message, tensors), most)
    return replace(question, tensors=_decode_tensors(tensors), raw=_decode_raw(raw) if given == "raw" else ())


def _question(data: bytes) -> InspectRequest:
    """The question in a message, without what it is about."""
    message = parsed(data)
    refuse_unserved(message)
    if not message.model:
        raise error(Reason.INVALID_VALUE, "name the model", "model")
    if message.compare and not message.edits:
        raise error(Reason.INVALID_VALUE, "comparing needs edits: without them both models are the same", "compare")
    return InspectRequest(
        model=message.model,
        target=_decode_target(message.target),
        captures=tuple(each("captures", captures.decode, message.captures)),
        input_gradients=tuple(message.input_gradients.inputs) if message.HasField("input_gradients") else None,
        edits=tuple(each("edits", edits.decode, message.edits)),
        compare=message.compare,
        attributions=tuple(each("attributions", methods.decode, message.attributions)),
        explain_if=_decode_condition(message.explain_if) if message.HasField("explain_if") else None,
        check=_decode_check(message.check),
        omit_predictions=message.options.omit_predictions,
        max_reply_bytes=message.options.max_reply_bytes,
        seed=_seed(message.options.seed) if message.options.HasField("seed") else None,
        reply_data_type=decode_floating(message.options.reply_data_type, "options.reply_data_type"),
        compression=_compression(message.options.compression),
        dry_run=message.options.dry_run,
    )


_SHORT = 1 << 14
"""Bytes of a question that is worth remembering: most callers ask the same of one input after another."""

_remembered = lru_cache(maxsize=256)(_question)


def _compression(number: int) -> str:
    name = decode_compression(number, "options.compression")
    with at("options.compression"):
        refuse_unknown(name)
    return name


def _seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise error(Reason.INVALID_VALUE, f"{seed}; a seed is from 0 to 2**63 - 1", "options.seed")
    return seed


def parsed(data: bytes) -> inspection_pb2.InspectRequest:
    """The message in ``data``."""
    try:
        return inspection_pb2.InspectRequest.FromString(data)
    except DecodeError:
        raise error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not a cutaway.v1.InspectRequest") from None


def _decode_tensors(message: input_pb2.TensorInputs) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, tensor in message.by_name.items():
        with at(f"tensors.by_name.{name}"):
            found[name] = arrays.decode(tensor)
    return found


def _decode_raw(message: input_pb2.RawInputs) -> tuple[Raw, ...]:
    if not message.examples:
        raise error(Reason.INPUT_EMPTY, "raw holds no example; send at least one", "raw.examples")
    return tuple(Raw(raw.data, raw.media_type) for raw in message.examples)


def _encode_target(target: Target) -> target_pb2.Target:
    with at("target"):
        return targets.encode(target)


def _decode_target(message: target_pb2.Target) -> Target:
    with at("target"):
        return targets.decode(message)


def _encode_condition(condition: ExplainIf | None) -> inspection_pb2.ExplainCondition | None:
    if condition is None:
        return None
    with at("explain_if"):
        return inspection_pb2.ExplainCondition(
            probability_at_least=condition.probability_at_least,
            probability_at_most=condition.probability_at_most,
            classes=wholes("classes", condition.classes, INT64),
        )


def _decode_condition(message: inspection_pb2.ExplainCondition) -> ExplainIf:
    bounds: dict[str, float] = {}
    with at("explain_if"):
        for name in ("probability_at_least", "probability_at_most"):
            if message.HasField(name):
                bounds[name] = getattr(message, name)
                if not 0 <= bounds[name] <= 1:
                    raise error(Reason.INVALID_VALUE, f"{bounds[name]}; a probability is from 0 to 1", name)
    return ExplainIf(**bounds, classes=tuple(message.classes))


def _decode_check(message: check_pb2.CheckRequest) -> CheckRequest:
    mode = CHECK_MODES.to_plain(message.mode, "check.mode")
    if not message.HasField("relative_tolerance"):
        return CheckRequest(mode)
    if not 0 <= message.relative_tolerance < math.inf:
        raise error(Reason.INVALID_VALUE, "a tolerance is a finite number from 0 up", "check.relative_tolerance")
    return CheckRequest(mode, message.relative_tolerance)
