"""Attribution requests and their typed messages: a row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    InputXGradient,
    IntegratedGradients,
    LayerActivation,
    LayerGradCam,
    LayerGradientXActivation,
    Saliency,
    field_name,
)
from cutaway.tensors import Array, ArrayLike, as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays
from cutaway.wire.enums import QUADRATURES


class Codec(NamedTuple):
    """How one method's own parameters travel, both ways. Its field in the ``oneof`` is its `field_name`."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], dict[str, Any]]


def _encode_path(request: IntegratedGradients) -> pb.IntegratedGradients:
    if not 1 <= request.n_steps < 2**32:  # 0 means the default on the wire
        raise error(Reason.INVALID_VALUE, f"{request.n_steps} steps; there is at least 1", "path.n_steps")
    path = pb.PathIntegral(n_steps=request.n_steps, quadrature=QUADRATURES.to_wire(request.quadrature))
    for name, given in request.baselines.items():
        path.baselines.by_input[name].CopyFrom(_encode_baseline(given))
    return pb.IntegratedGradients(path=path, multiply_by_inputs=request.multiply_by_inputs)


def _encode_baseline(given: float | ArrayLike) -> pb.Baseline:
    if isinstance(given, (int, float)):
        return pb.Baseline(scalar=given)
    return pb.Baseline(tensor=arrays.encode(as_array(given)))


def _decode_path(message: pb.IntegratedGradients) -> dict[str, Any]:
    baselines: dict[str, float | Array] = {}
    with at("path"):
        for name, given in message.path.baselines.by_input.items():
            with at(f"baselines.by_input.{name}"):
                baselines[name] = _decode_baseline(given)
        with at("quadrature"):
            quadrature = QUADRATURES.to_plain(message.path.quadrature)
    return {
        "n_steps": message.path.n_steps or 50,
        "baselines": baselines,
        "quadrature": quadrature,
        "multiply_by_inputs": _default_true(message, "multiply_by_inputs"),
    }


def _decode_baseline(given: pb.Baseline) -> float | Array:
    if given.WhichOneof("kind") is None:
        raise error(Reason.INVALID_VALUE, "a baseline needs a scalar or a tensor")
    if given.HasField("tensor"):
        with at("tensor"):
            return arrays.decode(given.tensor)
    return given.scalar


def _default_true(message: Any, field: str) -> bool:
    return bool(getattr(message, field)) if message.HasField(field) else True


def _layer(message: Any) -> dict[str, Any]:
    if not message.layer:
        raise error(Reason.INVALID_VALUE, "name the layer to explain", "layer")
    return {"layer": message.layer}


CODECS: dict[type[Attribution], Codec] = {
    Saliency: Codec(
        lambda request: pb.Saliency(absolute=request.absolute),
        lambda message: {"absolute": _default_true(message, "absolute")},
    ),
    InputXGradient: Codec(lambda _: pb.InputXGradient(), lambda _: {}),
    IntegratedGradients: Codec(_encode_path, _decode_path),
    LayerActivation: Codec(lambda request: pb.LayerActivation(layer=request.layer), _layer),
    LayerGradientXActivation: Codec(
        lambda request: pb.LayerGradientXActivation(layer=request.layer),
        _layer,
    ),
    LayerGradCam: Codec(
        lambda request: pb.LayerGradCam(layer=request.layer, relu=request.relu),
        lambda message: {**_layer(message), "relu": message.relu},
    ),
}

BY_FIELD = {field_name(kind): kind for kind in CODECS}
"""The ``oneof`` field to the kind of request."""
