"""Targets and their typed messages: a row each."""

from __future__ import annotations

from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    ClassIndex,
    Cotangent,
    CrossEntropy,
    MeanSquaredError,
    MultiIndex,
    Neuron,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
    TopK,
)
from cutaway.v1 import target_pb2 as pb
from cutaway.wire import arrays
from cutaway.wire.enums import LOSS_REDUCTIONS
from cutaway.wire.numbers import INT64, UINT32, at_least_one, real, whole, wholes
from cutaway.wire.oneof import Codec, OneOf
from cutaway.wire.repeated import each


def encode(target: Target) -> pb.Target:
    """``target`` as a message."""
    message = pb.Target(output=target.output)
    TARGETS.encode(target, message)
    return message


def decode(message: pb.Target) -> Target:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if message.WhichOneof("kind") is None:
        return PredictedClass(output=message.output)
    return TARGETS.decode(message, output=message.output)


def _some(indices: Any, what: str) -> tuple[Any, ...]:
    if not indices:
        raise error(Reason.TARGET_MISMATCH, f"no {what}; send one for all, or one an example")
    return tuple(indices)


def _encode_position(position: tuple[int, ...]) -> pb.Index:
    return pb.Index(positions=wholes("positions", position, INT64))


def _decode_norm(message: pb.OutputNorm) -> dict[str, Any]:
    if not message.HasField("order"):
        return {}
    if not message.order > 0:  # nor NaN
        raise error(Reason.INVALID_VALUE, f"{message.order}; the order of a norm is above 0", "order")
    return {"order": message.order}


def encode_neuron(target: Neuron) -> pb.Neuron:
    """A neuron as a message of its own."""
    with at("index"):
        return pb.Neuron(module=target.module, index=_encode_position(target.index))


def decode_neuron(message: pb.Neuron) -> Neuron:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    return Neuron(**_neuron(message))


def _neuron(message: pb.Neuron) -> dict[str, Any]:
    if not message.module:
        raise error(Reason.INVALID_VALUE, "name the module", "module")
    return {"module": message.module, "index": tuple(message.index.positions)}


TARGETS: OneOf[Target] = OneOf(
    "kind",
    "say which scalar",
    {
        PredictedClass: Codec("predicted_class", lambda _: pb.PredictedClass(), lambda _: {}),
        ClassIndex: Codec(
            "class_index",
            lambda target: pb.ClassIndex(indices=wholes("indices", target.indices, INT64)),
            lambda message: {"indices": _some(message.indices, "class index")},
        ),
        MultiIndex: Codec(
            "multi_index",
            lambda target: pb.MultiIndex(indices=each("indices", _encode_position, target.indices)),
            lambda message: {"indices": tuple(tuple(index.positions) for index in _some(message.indices, "position"))},
        ),
        TopK: Codec(
            "top_k",
            lambda target: pb.TopK(k=whole("k", target.k, UINT32)),
            lambda message: {"k": at_least_one("k", message.k)},
        ),
        CrossEntropy: Codec(
            "cross_entropy",
            lambda target: pb.CrossEntropyLoss(
                labels=wholes("labels", target.labels, INT64),
                reduction=LOSS_REDUCTIONS.to_wire(target.reduction, "reduction"),
            ),
            lambda message: {
                "labels": _some(message.labels, "label"),
                "reduction": LOSS_REDUCTIONS.to_plain(message.reduction, "reduction"),
            },
        ),
        MeanSquaredError: Codec(
            "mean_squared_error",
            lambda target: pb.MeanSquaredErrorLoss(
                values=arrays.encode_given("values", target.values),
                reduction=LOSS_REDUCTIONS.to_wire(target.reduction, "reduction"),
            ),
            lambda message: {
                "values": arrays.decode_required("values", message),
                "reduction": LOSS_REDUCTIONS.to_plain(message.reduction, "reduction"),
            },
        ),
        Cotangent: Codec(
            "cotangent",
            lambda target: pb.Cotangent(tensor=arrays.encode_given("tensor", target.tensor)),
            lambda message: {"tensor": arrays.decode_required("tensor", message)},
        ),
        OutputSum: Codec("sum", lambda _: pb.OutputSum(), lambda _: {}),
        OutputNorm: Codec("norm", lambda target: pb.OutputNorm(order=real("order", target.order)), _decode_norm),
        Neuron: Codec("neuron", encode_neuron, _neuron),
    },
)
