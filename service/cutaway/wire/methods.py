"""Attribution requests: a method's own parameters are a row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cutaway.errors import Reason, at, error
from cutaway.requests import (
    Attribution,
    Deconvolution,
    GuidedBackprop,
    GuidedGradCam,
    InputXGradient,
    IntegratedGradients,
    InternalInfluence,
    LayerActivation,
    LayerConductance,
    LayerGradCam,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    PathAttribution,
    Saliency,
    Target,
)
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import baselines, perturbations, targets
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


def _encode_path(request: PathAttribution) -> pb.PathIntegral:
    if not 1 <= request.n_steps < 2**32:  # 0 means the default on the wire
        raise error(Reason.INVALID_VALUE, f"{request.n_steps} steps; there is at least 1", "path.n_steps")
    path = pb.PathIntegral(
        n_steps=request.n_steps, quadrature=QUADRATURES.to_wire(request.quadrature, "path.quadrature")
    )
    with at("path"):
        baselines.encode(request.baselines, path.baselines)
    return path


def _path(message: Any) -> dict[str, Any]:
    with at("path"):
        starts = baselines.decode(message.path.baselines)
        with at("quadrature"):
            quadrature = QUADRATURES.to_plain(message.path.quadrature)
    return {"n_steps": message.path.n_steps or 50, "baselines": starts, "quadrature": quadrature}


def _default_true(message: Any, field: str) -> bool:
    return bool(getattr(message, field)) if message.HasField(field) else True


def _layer(message: Any) -> dict[str, Any]:
    if not message.layer:
        raise error(Reason.INVALID_VALUE, "name the layer to explain", "layer")
    return {"layer": message.layer}


def _layer_path(field: str, message: Callable[..., Any]) -> Codec:
    """A method that has a layer and a path, and nothing else."""
    return Codec(
        field,
        lambda request: message(layer=request.layer, path=_encode_path(request)),
        lambda given: {**_layer(given), **_path(given)},
    )


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
        IntegratedGradients: Codec(
            "integrated_gradients",
            lambda request: pb.IntegratedGradients(
                path=_encode_path(request), multiply_by_inputs=request.multiply_by_inputs
            ),
            lambda message: {**_path(message), "multiply_by_inputs": _default_true(message, "multiply_by_inputs")},
        ),
        GuidedBackprop: Codec("guided_backprop", lambda _: pb.GuidedBackprop(), lambda _: {}),
        Deconvolution: Codec("deconvolution", lambda _: pb.Deconvolution(), lambda _: {}),
        GuidedGradCam: Codec("guided_grad_cam", lambda request: pb.GuidedGradCam(layer=request.layer), _layer),
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
        LayerConductance: _layer_path("layer_conductance", pb.LayerConductance),
        InternalInfluence: _layer_path("internal_influence", pb.InternalInfluence),
        LayerIntegratedGradients: _layer_path("layer_integrated_gradients", pb.LayerIntegratedGradients),
        **perturbations.CODECS,
    },
)
