"""The cost of a check: time of an attribution with its check, divided by time of the attribution alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import cutaway as ca
from bench.interleaved import Measure, Ratio, ratios
from bench.models import Model
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.captum_call import method_of


class Row(NamedTuple):
    """The cost of one method's check on one model.

    Attributes:
        model: the model's name.
        method: the method's name.
        same_pass: ratio in mode `same_pass`; None if the method does not support it.
        independent: ratio in mode `independent`.
    """

    model: str
    method: str
    same_pass: Ratio | None
    independent: Ratio


def asked(model: Model) -> Iterator[ca.Attribution]:
    """Returns attribution requests for ``model`` with common parameters and a number of passes fit for a benchmark."""
    names = [name for name, tensor in model.inputs.items() if tensor.is_floating_point()]
    yield ca.LayerActivation(layer=model.layer)
    yield ca.LayerGradientXActivation(layer=model.layer)
    yield ca.LayerGradCam(layer=model.layer)
    if not names:
        ids = next(iter(model.inputs))
        yield ca.LayerIntegratedGradients(layer=model.layer, inputs=(ids,), baselines={ids: ca.TokenId(0)}, n_steps=16)
        yield ca.FeatureAblation(inputs=(ids,))
        return
    (name,) = names
    shape = model.inputs[name].shape
    blocks: dict[str, Any] = {name: np.arange(shape[1:].numel()).reshape(1, *shape[1:]) * 16 // shape[1:].numel()}
    samples = {name: np.zeros((4, *shape[1:]), np.float32)}
    yield ca.Saliency()
    yield ca.InputXGradient()
    yield ca.IntegratedGradients(n_steps=32)
    yield ca.GuidedBackprop()
    yield ca.Deconvolution()
    yield ca.GuidedGradCam(layer=model.layer)
    yield ca.LayerConductance(layer=model.layer, n_steps=16)
    yield ca.InternalInfluence(layer=model.layer, n_steps=16)
    yield ca.LayerIntegratedGradients(layer=model.layer, n_steps=16)
    yield ca.FeatureAblation(masks=blocks)
    yield ca.FeaturePermutation(masks=blocks)
    yield ca.ShapleyValueSampling(masks=blocks, n_samples=2)
    yield ca.KernelShap(masks=blocks, n_samples=16)
    yield ca.Lime(masks=blocks, n_samples=16)
    yield ca.DeepLift()
    yield ca.DeepLiftShap(baselines=samples)
    yield ca.LayerDeepLift(layer=model.layer)
    yield ca.GradientShap(baselines=samples, n_samples=4)
    yield ca.LayerGradientShap(layer=model.layer, baselines=samples, n_samples=4)
    yield ca.LRP()
    yield ca.LayerLRP(layer=model.layer)
    yield ca.Saliency(noise=ca.NoiseTunnel(n_samples=4, stdev=0.1))


def rows(model: Model, rounds: int) -> Iterator[Row]:
    """Measures each method on ``model``; methods that do not apply to it are left out."""
    for attribution in asked(model):
        try:
            found = ratios(
                timed(model, attribution, ca.CheckMode.OFF),
                {mode.value: timed(model, attribution, mode) for mode in ca.CheckMode if mode is not ca.CheckMode.OFF},
                rounds,
            )
        except ca.InvalidArgument:
            continue
        noise = "NoiseTunnel of " if attribution.noise else ""
        allows = method_of(attribution).reads_captum
        yield Row(
            model.name,
            f"{noise}{type(attribution).__name__}",
            found["same_pass"] if allows else None,
            found["independent"],
        )


def timed(model: Model, attribution: ca.Attribution, mode: ca.CheckMode) -> Measure:
    request = ca.InspectRequest("m", attributions=(attribution,), check=ca.CheckRequest(mode), seed=1)

    def run() -> float:
        timings = inspect(model.inspected, request, model.inputs).timings
        return timings.attribution_ms + timings.check_ms

    return run
