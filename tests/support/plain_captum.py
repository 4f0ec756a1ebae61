"""Captum, called by hand as its documentation has it: what every reply must equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from captum import attr
from captum.attr._utils import lrp_rules
from torch import Tensor, nn
from torch.nn.modules import conv

import cutaway as ca
from cutaway.contract.requests import Epsilon, ExpectedGradient, PathAttribution
from tests.support.checked_attributions import Wired

SEED = 11
SAMPLED = (ca.DeepLiftShap, ca.LayerDeepLiftShap, ca.NeuronDeepLiftShap, ExpectedGradient)
"""Methods whose baselines are a distribution."""

RULES: dict[type, Any] = {
    Epsilon: lambda rule: lrp_rules.EpsilonRule(rule.epsilon),
    ca.Gamma: lambda rule: lrp_rules.GammaRule(rule.gamma),
    ca.AlphaOneBetaZero: lambda rule: lrp_rules.Alpha1_Beta0_Rule(),
    ca.RelevanceIdentity: lambda rule: lrp_rules.IdentityRule(),
}


class Positional(nn.Module):
    """A model that takes tensors in a certain order; returns one number a row if ``target`` is given."""

    def __init__(self, model: nn.Module, order: list[str], target: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.order, self.target = model, order, target

    def forward(self, *tensors: Tensor) -> Tensor:
        output: Tensor = self.model(**dict(zip(self.order, tensors)))
        return output if self.target is None else output.gather(1, self.target.unsqueeze(1)).squeeze(1)


class Behind:
    """What Captum's Grad-CAM gets as the layer: a module behind it whose channels are on axis 1, in a ``with`` block.

    The axis is that of the layer's last part that has channels. Other methods get the layer itself.
    """

    def __init__(self, asked: Any, layer: nn.Module | None) -> None:
        kinds = (conv._ConvNd, nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase)
        parts = [] if layer is None else [
            part for part in layer.modules() if isinstance(part, kinds) or type(part).__name__ == "T5LayerNorm"
        ]  # fmt: skip
        last = bool(parts) and not isinstance(parts[-1], conv._ConvNd)
        self.layer, self.moves = layer, isinstance(asked, ca.LayerGradCam) and last
        self.shown = nn.Identity() if self.moves else layer
        self._handle: Any = None

    def __enter__(self) -> None:
        if self.layer is not None and self.moves:
            self._handle = self.layer.register_forward_hook(self._move)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _move(self, _: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._move(_, __, output[0]), *output[1:])
        return self.back(self.shown(output.movedim(-1, 1)))  # type: ignore[misc]

    def back(self, values: Tensor) -> Tensor:
        """Values in the axes of the layer."""
        return values.movedim(1, -1) if self.moves else values


def by_hand(model: nn.Module, inputs: Mapping[str, Tensor], asked: Any, target: Tensor | None = None) -> list[Tensor]:
    """Returns Captum's answer to ``asked``, drawn from ``SEED``; of the predicted class without a ``target``."""
    names = list(asked.inputs) or [name for name in inputs if inputs[name].is_floating_point()] or list(inputs)
    rest = [name for name in inputs if name not in names]
    output = model(**inputs)
    if target is None and output.ndim > 1:
        target = output.argmax(1)
    alone = isinstance(asked, ca.LayerFeaturePermutation)  # Captum 0.9 selects its target twice, which cannot be
    forward = Positional(model, names + rest, target if alone else None)
    is_relevance = isinstance(asked, ca.LRP | ca.LayerLRP)
    for name, rule in (asked.rules if is_relevance else {}).items():
        model.get_submodule(name).rule = RULES[type(rule)](rule)
    options = _options(asked, names, inputs)
    if not alone and (not isinstance(asked, ca.LayerActivation) and not hasattr(asked, "neuron")):
        options["target"] = target
    if isinstance(asked, ca.NeuronConductance):
        options["target"] = target
    further = tuple(inputs[name].clone().requires_grad_(is_relevance) for name in rest)
    options["additional_forward_args"] = further or None
    place = asked.neuron.module if hasattr(asked, "neuron") else getattr(asked, "layer", "")
    behind = Behind(asked, model.get_submodule(place) if place else None)
    explainer = getattr(attr, type(asked).__name__)(forward, *([] if behind.shown is None else [behind.shown]))
    given: Any = tuple(inputs[name].clone().requires_grad_(inputs[name].is_floating_point()) for name in names)
    if isinstance(asked, ca.LayerFeatureAblation):
        returned = attr.LayerActivation(forward, explainer.layer).attribute(given, further or None)
        options["layer_baselines"] = (asked.baseline,) * (len(returned) if isinstance(returned, tuple) else 1)
    with torch.random.fork_rng(devices=[]), behind:
        torch.manual_seed(SEED)
        np.random.seed(SEED)
        if asked.noise:
            found = attr.NoiseTunnel(explainer).attribute(
                given if len(given) > 1 else given[0], nt_type=asked.noise.combination.value,
                nt_samples=asked.noise.n_samples, nt_samples_batch_size=1, stdevs=asked.noise.stdev, **options,
            )  # fmt: skip
        else:
            found = explainer.attribute(given, **options)
    return [behind.back(each.detach()) for each in (found if isinstance(found, tuple) else (found,))]


def _options(asked: Any, names: list[str], inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns what Captum's ``attribute`` is told of the parameters of ``asked``."""
    options: dict[str, Any] = {}
    if isinstance(asked, SAMPLED):
        options["baselines"] = tuple(torch.as_tensor(asked.baselines[name]) for name in names)
    elif hasattr(asked, "baselines"):
        options["baselines"] = tuple(_filled(asked.baselines.get(name, 0), inputs[name]) for name in names)
    if isinstance(asked, PathAttribution):
        options |= {"n_steps": asked.n_steps, "method": asked.quadrature.value}
    if getattr(asked, "masks", {}):
        masks = {name: asked.masks.get(name, np.full(inputs[name][:1].shape, 99)) for name in names}
        numbers = sorted({int(each) for mask in masks.values() for each in np.unique(mask)})
        options["feature_mask"] = tuple(torch.tensor(np.searchsorted(numbers, mask)) for mask in masks.values())
    if isinstance(asked, ca.Occlusion):
        options["sliding_window_shapes"] = tuple(asked.windows[name] for name in names)
        options["strides"] = tuple(asked.strides.get(name, 1) for name in names)
    if hasattr(asked, "n_samples"):
        options["n_samples"] = asked.n_samples
    if isinstance(asked, ExpectedGradient):
        options["stdevs"] = asked.stdev
    if isinstance(asked, ca.Saliency):
        options["abs"] = asked.absolute
    if isinstance(asked, ca.LayerGradCam):
        options["relu_attributions"] = asked.relu
    if hasattr(asked, "neuron"):
        options["neuron_selector"] = asked.neuron.index
    return options


def _filled(given: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(given, dtype=like.dtype).expand_as(like) if np.ndim(given) else torch.full_like(like, given)


def permutes_one_row() -> bool:
    """Whether this Captum answers a permutation of one row with zeros, as 0.9 does; 0.8 refuses it."""
    try:
        attr.FeaturePermutation(lambda x: x.sum(1)).attribute(torch.ones(1, 2))
    except AssertionError:
        return False
    return True


def ablates_across_inputs() -> bool:
    """Whether this Captum ablates a feature of two inputs in both at once, as 0.9 does; 0.8 does so in one by one."""
    ones, mask = (torch.ones(1, 1),) * 2, (torch.zeros(1, 1, dtype=torch.long),) * 2
    found = attr.FeatureAblation(lambda x, y: (x + y).sum(1)).attribute(ones, feature_mask=mask)
    return bool(found[0] == 2)


def reads_lists() -> bool:
    """Whether this Captum reads a layer that returns a list, as 0.9 does; 0.8 fails on it."""
    listed = Wired(lambda m, x: m.layer(x)[0].sum(1), layer=Wired(lambda _, x: [x]))
    try:
        attr.LayerActivation(listed, listed.layer).attribute(torch.ones(1, 2))
    except AttributeError:
        return False
    return True
