"""Targets: a subclass and a message for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutaway.errors import Reason, error
from cutaway.requests import (
    ClassIndex,
    ClassLabel,
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
from cutaway.wire.captures import SLICES
from cutaway.wire.codec import REQUIRED_TENSOR, FieldRule, record
from cutaway.wire.oneof import OneOf
from cutaway.wire.scalars import at_least_one, bounded, given


def _some(attribute: str, element: str) -> Callable[[Any], None]:
    def check(target: Any) -> None:
        if not getattr(target, attribute):
            raise error(Reason.TARGET_MISMATCH, f"no {element}; send one for all, or one an example")

    return check


_RULES = {
    "k": FieldRule(check=at_least_one),
    "values": REQUIRED_TENSOR,
    "tensor": REQUIRED_TENSOR,
    "order": FieldRule(check=bounded(lambda order: order > 0, "the order of a norm is above 0")),
    "module": FieldRule(check=given("name the module")),
    "slices": FieldRule(codec=SLICES),
}

NEURON = record(Neuron, pb.Neuron, _RULES)

TARGETS: OneOf[Target] = OneOf(
    Target,
    pb.Target,
    "kind",
    "say which scalar",
    {
        "predicted_class": PredictedClass,
        "class_index": ClassIndex,
        "multi_index": MultiIndex,
        "top_k": TopK,
        "cross_entropy": CrossEntropy,
        "mean_squared_error": MeanSquaredError,
        "cotangent": Cotangent,
        "sum": OutputSum,
        "norm": OutputNorm,
        "neuron": Neuron,
        "class_label": ClassLabel,
    },
    rules=_RULES,
    checks={
        ClassIndex: _some("indices", "class index"),
        ClassLabel: _some("labels", "label"),
        MultiIndex: _some("indices", "position"),
        CrossEntropy: _some("labels", "label"),
    },
    default=PredictedClass,
)
