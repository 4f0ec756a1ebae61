"""Attributions by perturbation, a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    FeatureAblation,
    FeaturePermutation,
    Occlusion,
    ShapleyValues,
    ShapleyValueSampling,
)
from cutaway.tensors import Array, as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays, baselines
from cutaway.wire.oneof import Codec


def _encode(message: Any, request: Any) -> Any:
    """``message`` with those of its fields that are baselines, masks or a number of samples."""
    if hasattr(request, "baselines"):
        baselines.encode(request.baselines, message.baselines)
    if hasattr(request, "masks"):
        with at("masks.by_input"):
            for name, mask in request.masks.items():
                with at(name):
                    message.masks.by_input[name].CopyFrom(arrays.encode(as_array(mask)))
    if hasattr(request, "n_samples"):
        if not 1 <= request.n_samples < 2**32:  # 0 means the default on the wire
            raise error(Reason.INVALID_VALUE, f"{request.n_samples} samples; there is at least 1", "n_samples")
        message.n_samples = request.n_samples
    return message


def _encode_occlusion(request: Occlusion) -> pb.Occlusion:
    message = pb.Occlusion()
    baselines.encode(request.baselines, message.baselines)
    for field, given in (("windows", request.windows), ("strides", request.strides)):
        with at(field):
            for name, sizes in given.items():
                with at(name):
                    getattr(message, field)[name].CopyFrom(_encode_sizes(sizes))
    return message


def _encode_sizes(sizes: Sequence[int]) -> pb.AxisSizes:
    if not all(-(2**63) <= size < 2**63 for size in sizes):
        raise error(Reason.INVALID_VALUE, f"{list(sizes)}; sizes have 64 bits", "sizes")
    return pb.AxisSizes(sizes=sizes)


def _masks(message: Any) -> dict[str, Array]:
    found: dict[str, Array] = {}
    with at("masks.by_input"):
        for name, mask in message.masks.by_input.items():
            with at(name):
                found[name] = arrays.decode(mask)
    return found


def _sizes(message: Mapping[str, pb.AxisSizes]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.sizes) for name, each in message.items()}


def _grouped(message: Any) -> dict[str, Any]:
    return {"baselines": baselines.decode(message.baselines), "masks": _masks(message)}


def _sampled(default: int) -> Callable[[Any], dict[str, Any]]:
    return lambda message: {**_grouped(message), "n_samples": message.n_samples or default}


CODECS: dict[type[Attribution], Codec] = {
    FeatureAblation: Codec("feature_ablation", lambda request: _encode(pb.FeatureAblation(), request), _grouped),
    FeaturePermutation: Codec(
        "feature_permutation",
        lambda request: _encode(pb.FeaturePermutation(), request),
        lambda message: {"masks": _masks(message)},
    ),
    Occlusion: Codec(
        "occlusion",
        _encode_occlusion,
        lambda message: {
            "baselines": baselines.decode(message.baselines),
            "windows": _sizes(message.windows),
            "strides": _sizes(message.strides),
        },
    ),
    ShapleyValues: Codec("shapley_values", lambda request: _encode(pb.ShapleyValues(), request), _grouped),
    ShapleyValueSampling: Codec(
        "shapley_value_sampling", lambda request: _encode(pb.ShapleyValueSampling(), request), _sampled(25)
    ),
}
