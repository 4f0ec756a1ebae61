"""Attribution requests: a method's own parameters are a row each."""

from __future__ import annotations

from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    InputXGradient,
    IntegratedGradients,
    LayerActivation,
    LayerGradCam,
    LayerGradientXActivation,
    Saliency,
    Target,
)
from cutaway.tensors import Array, ArrayLike, as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays, targets
from cutaway.wire.enums import QUADRATURES
from cutaway.wire.oneof import Codec, OneOf


def encode(request: Attribution) -> pb.AttributionRequest:
    """``request`` as a message."""
    message = pb.AttributionRequest(inputs=request.inputs)
    METHODS.encode(request, message)
    if request.target is not None:
        with at("target"):
            message.target.CopyFrom(targets.encode(request.target))
    return message


def decode(message: pb.AttributionRequest) -> Attribution:
    """The same, backwards.

    Raises:
        InvalidArgument: with the field at fault.
    """
    return METHODS.decode(message, target=_decode_target(message), inputs=tuple(message.inputs))


def _decode_target(message: pb.AttributionRequest) -> Target | None:
    if not message.HasField("target"):
        return None
    with at("target"):
        return targets.decode(message.target)


def _encode_path(request: IntegratedGradients) -> pb.IntegratedGradients:
    if not 1 <= request.n_steps < 2**32:  # 0 means the default on the wire
        raise error(Reason.INVALID_VALUE, f"{request.n_steps} steps; there is at least 1", "path.n_steps")
    path = pb.PathIntegral(
        n_steps=request.n_steps, quadrature=QUADRATURES.to_wire(request.quadrature, "path.quadrature")
    )
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


METHODS: OneOf[Attribution] = OneOf(
    "method",
    "name a method",
    {
        Saliency: Codec(
            "saliency",
            lambda request: pb.Saliency(absolute=request.absolute),
            lambda message: {"absolute": _default_true(message, "absolute")},
        ),
        InputXGradient: Codec("input_x_gradient", lambda _: pb.InputXGradient(), lambda _: {}),
        IntegratedGradients: Codec("integrated_gradients", _encode_path, _decode_path),
        LayerActivation: Codec("layer_activation", lambda request: pb.LayerActivation(layer=request.layer), _layer),
        LayerGradientXActivation: Codec(
            "layer_gradient_x_activation",
            lambda request: pb.LayerGradientXActivation(layer=request.layer),
            _layer,
        ),
        LayerGradCam: Codec(
            "layer_grad_cam",
            lambda request: pb.LayerGradCam(layer=request.layer, relu=request.relu),
            lambda message: {**_layer(message), "relu": message.relu},
        ),
    },
)
