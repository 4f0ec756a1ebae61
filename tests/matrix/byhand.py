"""What Captum answers when it is called by hand, as its documentation uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from captum import attr
from captum.attr._utils import lrp_rules
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Expectation, LayerAttribution, NeuronAttribution
from tests.support.plain_captum import Behind

MODULES = (
    *("DeepLift", "DeepLiftShap", "LayerDeepLift", "LayerDeepLiftShap", "NeuronDeepLift", "NeuronDeepLiftShap"),
    *("LRP", "LayerLRP", "GuidedBackprop", "Deconvolution", "GuidedGradCam"),
    *("NeuronGuidedBackprop", "NeuronDeconvolution"),
)
"""Methods that hook modules themselves, and are given one."""


class Called(nn.Module):
    """A network that takes its inputs by position, those that are explained first, and returns the output wanted."""

    def __init__(
        self, network: nn.Module, names: list[str], declared: list[str], read: Callable[[Any], Tensor]
    ) -> None:
        super().__init__()
        self.network = network
        self._names, self._declared, self._read = names, declared, read

    def forward(self, *tensors: Tensor) -> Tensor:
        given = dict(zip(self._names, tensors))
        return self._read(self.network(**{name: given[name] for name in self._declared}))


def explained(asked: ca.Attribution, inputs: Mapping[str, Tensor]) -> list[str]:
    """The names of the inputs that are explained."""
    floating = [name for name, tensor in inputs.items() if tensor.is_floating_point()]
    return list(asked.inputs) or floating or list(inputs)


def plain(
    asked: ca.Attribution,
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    read: Callable[[Any], Tensor],
    target: Tensor,
    seed: int,
) -> list[Tensor]:
    """Captum's answer to ``asked``."""
    names = explained(asked, inputs)
    rest = [name for name in inputs if name not in names]
    called = Called(network, names + rest, list(inputs), read)
    kind: Any = getattr(attr, type(asked).__name__)
    function: Any = called if type(asked).__name__ in MODULES else called.forward
    if isinstance(asked, ca.LayerFeaturePermutation):
        # Captum 0.9 selects the target twice here, which fails: the output is narrowed to the target beforehand.
        function = lambda *tensors: called(*tensors).gather(1, target.unsqueeze(1)).squeeze(1)  # noqa: E731
    place = _place(asked)
    layer = network.get_submodule(place) if place else None
    behind = Behind(asked, layer)
    made = kind(function, *([] if behind.shown is None else [behind.shown]), **_settings(asked))
    options = {**_options(asked, inputs, names), **_target(asked, target)}
    if asked.noise is not None:
        made = attr.NoiseTunnel(made)
        options |= {
            "nt_type": asked.noise.combination.value, "nt_samples": asked.noise.n_samples,
            "stdevs": asked.noise.stdev, "nt_samples_batch_size": 1,
        }  # fmt: skip
    given = tuple(inputs[name].clone() for name in names)
    if not _only_forward(asked):
        given = tuple(each.requires_grad_() if each.is_floating_point() else each for each in given)
    for name, rule in getattr(asked, "rules", {}).items():
        network.get_submodule(name).rule = _rule(rule)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    further = tuple(inputs[name] for name in rest)
    with behind:
        found = made.attribute(given, additional_forward_args=further or None, **options)
    return [behind.back(each.detach()) for each in (found if isinstance(found, (tuple, list)) else (found,))]


def _rule(rule: Any) -> Any:
    return lrp_rules.IdentityRule() if isinstance(rule, ca.RelevanceIdentity) else lrp_rules.EpsilonRule(rule.epsilon)


def _place(asked: ca.Attribution) -> str:
    if isinstance(asked, NeuronAttribution):
        return asked.neuron.module
    return str(getattr(asked, "layer", ""))


def _only_forward(asked: ca.Attribution) -> bool:
    return not hasattr(attr, type(asked).__name__) or issubclass(
        getattr(attr, type(asked).__name__), (attr.FeatureAblation, attr.ShapleyValueSampling, attr.Lime)
    )


def _settings(asked: ca.Attribution) -> dict[str, Any]:
    return {"multiply_by_inputs": asked.multiply_by_inputs} if isinstance(asked, ca.IntegratedGradients) else {}


def _target(asked: ca.Attribution, target: Tensor) -> dict[str, Any]:
    if isinstance(asked, NeuronAttribution):
        own = {"target": target} if isinstance(asked, ca.NeuronConductance) else {}
        return {"neuron_selector": asked.neuron.index, **own}
    return {} if isinstance(asked, (ca.LayerActivation, ca.LayerFeaturePermutation)) else {"target": target}


def _options(asked: Any, inputs: Mapping[str, Tensor], names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if hasattr(asked, "baselines"):
        found["baselines"] = tuple(_start(asked, name, inputs[name]) for name in names)
    if getattr(asked, "masks", None):
        found["feature_mask"] = tuple(torch.from_numpy(asked.masks[name]).to(inputs[name].device) for name in names)
    if hasattr(asked, "n_steps"):
        found |= {"n_steps": asked.n_steps, "method": asked.quadrature.value}
    if isinstance(asked, ca.Occlusion):
        found["sliding_window_shapes"] = tuple(asked.windows[name] for name in names)
        found["strides"] = tuple(asked.strides[name] for name in names)
    renamed = {"absolute": "abs", "relu": "relu_attributions", "n_samples": "n_samples", "stdev": "stdevs",
               "baseline": "layer_baselines"}  # fmt: skip
    return found | {theirs: getattr(asked, ours) for ours, theirs in renamed.items() if hasattr(asked, ours)}


def _start(asked: Any, name: str, like: Tensor) -> Any:
    given = asked.baselines.get(name, 0)
    if isinstance(asked, Expectation):
        return torch.from_numpy(np.asarray(given)).to(like)
    if isinstance(given, (int, float)):
        return torch.full_like(like, given)
    return torch.from_numpy(given).to(like).expand_as(like)


def is_layer(asked: ca.Attribution) -> bool:
    """Whether the answer has the shape of a layer's output."""
    return isinstance(asked, LayerAttribution)
