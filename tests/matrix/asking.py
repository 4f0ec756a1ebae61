"""The explanations that an architecture of the zoo can be asked for: all that its inputs allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import cutaway as ca
from cutaway.contract.requests import LrpRule
from cutaway.contract.tensors import Array
from cutaway.engine.runtime.numerics import to_numpy

STEPS = 16


class Places(NamedTuple):
    """Where an architecture is looked into.

    Attributes:
        layer: a layer in the middle, of few units.
        maps: a layer of channels and positions, [batch, channels, ...].
        neuron: an element of what a module returns.
        embedding: where token ids become numbers; empty for inputs that are numbers already.
        explained: the inputs that are explained; empty for all that are numbers.
        exchanged: the inputs whose values perturbations exchange; empty for those that are explained.
        keeps: token ids that every row must keep, so that nothing can be exchanged between rows.
        passed: modules through which relevance passes unchanged, by a rule that is given.
        spread: modules through which it passes in proportion, by a rule that is given.
    """

    layer: str
    maps: str
    neuron: ca.Neuron
    embedding: str = ""
    explained: tuple[str, ...] = ()
    keeps: tuple[int, ...] = ()
    passed: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    exchanged: tuple[str, ...] = ()


PLACES: Mapping[str, Places] = {
    "cnn": Places("3", "3", ca.Neuron("3", (1, 0, 0)), spread=("5",)),
    "resnet": Places("layer2.1.conv1", "layer2.1.conv1", ca.Neuron("stem.0", (2, 4, 4)),
        passed=("layer1.0.downsample", "layer1.1.downsample", "layer2.1.downsample")),
    "densenet": Places("transition.2", "transition.2", ca.Neuron("transition.2", (2, 1, 1))),
    "unet": Places("bottom.0", "down2.0", ca.Neuron("down1.0", (1, 3, 4)), spread=("up1.grow", "up2.grow")),
    "mobilenet": Places("blocks.1.block.7", "blocks.0.block.7", ca.Neuron("blocks.0.block.7", (1, 0, 1))),
    "lstm": Places("words", "words", ca.Neuron("head", (1,)), "words"),
    "gru": Places("head", "head", ca.Neuron("head", (2,))),
    "bert": Places("bert.pooler.dense", "bert.encoder.layer.0", ca.Neuron("bert.pooler.dense", (3,)),
        "bert.embeddings.word_embeddings"),
    "gpt2": Places("transformer.ln_f", "transformer.ln_f", ca.Neuron("transformer.ln_f", (1, 2)), "transformer.wte"),
    "vit": Places("vit.layernorm", "vit.embeddings.patch_embeddings.projection", ca.Neuron("vit.layernorm", (0, 3))),
    "convnext": Places("convnext.layernorm", "convnext.encoder.stages.1.layers.0.dwconv",
        ca.Neuron("convnext.layernorm", (2,))),
    "t5": Places("classification_head.dense", "transformer.encoder.final_layer_norm",
        ca.Neuron("classification_head.dense", (1,)), "transformer.encoder.embed_tokens", keeps=(1,)),
    "mixer": Places("norm", "embed", ca.Neuron("blocks.0.norm2", (1, 2))),
    "mixture-of-experts": Places("head", "head", ca.Neuron("head", (0,))),
    "many-to-many": Places("fusion.norm", "fusion.norm", ca.Neuron("fusion.norm", (2,)), explained=("left", "right")),
}  # fmt: skip


def every(name: str, inputs: Mapping[str, Tensor]) -> tuple[ca.Attribution, ...]:
    """All that can be asked about ``inputs`` of the architecture ``name``."""
    return at_places(PLACES[name], inputs)


def at_places(places: Places, inputs: Mapping[str, Tensor]) -> tuple[ca.Attribution, ...]:
    """All that can be asked about ``inputs`` of a model that is looked into at ``places``."""
    floating = [each for each, tensor in inputs.items() if tensor.is_floating_point()]
    explained = list(places.explained) or floating or [next(iter(inputs))]
    asked = [*perturbations(places, inputs, list(places.exchanged) or explained)]
    if floating:
        asked += [*gradients(places), *paths(places, inputs, explained), *shap(places, inputs, explained)]
        asked += [*comparisons(places), *rectified(places, inputs, explained), *noisy(places)]
    if places.embedding:
        asked += tokens(places, inputs)
    return (*at_layers(places), *(_about(places, each) for each in asked))


def _about(places: Places, asked: ca.Attribution) -> ca.Attribution:
    """``asked`` of the inputs that are explained, unless it names some; methods of a layer alone explain none."""
    alone = isinstance(asked, (ca.LayerLRP, ca.LayerGradCam, ca.LayerGradientXActivation))
    if alone or not places.explained or asked.inputs:
        return asked
    return replace(asked, inputs=places.explained)


def at_layers(places: Places) -> Iterator[ca.Attribution]:
    yield ca.LayerActivation(layer=places.layer)
    yield ca.LayerGradientXActivation(layer=places.layer)
    yield ca.LayerGradCam(layer=places.maps)
    yield ca.LayerGradCam(layer=places.maps, relu=True)
    yield ca.LayerFeatureAblation(layer=places.layer, baseline=0.25)
    yield ca.LayerFeaturePermutation(layer=places.layer)


def gradients(places: Places) -> Iterator[ca.Attribution]:
    yield ca.Saliency()
    yield ca.Saliency(absolute=False)
    yield ca.InputXGradient()
    yield ca.NeuronGradient(neuron=places.neuron)


def starts(inputs: Mapping[str, Tensor], explained: list[str]) -> dict[str, Array]:
    """A baseline of numbers for each input."""
    return {name: to_numpy(inputs[name].flip(0) * 0.3 + 0.1) for name in explained}


def paths(places: Places, inputs: Mapping[str, Tensor], explained: list[str]) -> Iterator[ca.Attribution]:
    begin = starts(inputs, explained)
    middle = ca.Quadrature.RIEMANN_MIDDLE
    yield ca.IntegratedGradients(n_steps=STEPS)
    yield ca.IntegratedGradients(n_steps=STEPS, baselines=begin, quadrature=middle)
    yield ca.IntegratedGradients(n_steps=STEPS, multiply_by_inputs=False)
    yield ca.LayerConductance(layer=places.layer, n_steps=STEPS, baselines=begin)
    yield ca.InternalInfluence(layer=places.layer, n_steps=STEPS, baselines=begin)
    yield ca.LayerIntegratedGradients(layer=places.layer, n_steps=STEPS, baselines=begin)
    yield ca.NeuronIntegratedGradients(neuron=places.neuron, n_steps=STEPS, baselines=begin)
    yield ca.NeuronConductance(neuron=places.neuron, n_steps=STEPS, baselines=begin)


def shap(places: Places, inputs: Mapping[str, Tensor], explained: list[str]) -> Iterator[ca.Attribution]:
    samples = {
        name: to_numpy(torch.cat([inputs[name][:1] * scale + 0.1 for scale in (0.2, -0.4, 0.5)])) for name in explained
    }
    drawn: dict[str, Any] = {"baselines": samples, "n_samples": 3, "stdev": 0.05}
    yield ca.GradientShap(**drawn)
    yield ca.LayerGradientShap(layer=places.layer, **drawn)
    yield ca.NeuronGradientShap(neuron=places.neuron, **drawn)
    yield ca.DeepLiftShap(baselines=samples)
    yield ca.LayerDeepLiftShap(layer=places.layer, baselines=samples)
    yield ca.NeuronDeepLiftShap(neuron=places.neuron, baselines=samples)


def comparisons(places: Places) -> Iterator[ca.Attribution]:
    yield ca.DeepLift()
    yield ca.LayerDeepLift(layer=places.layer)
    yield ca.NeuronDeepLift(neuron=places.neuron)
    rules: dict[str, LrpRule] = dict.fromkeys(places.passed, ca.RelevanceIdentity())
    rules |= dict.fromkeys(places.spread, ca.Epsilon(1e-6))
    yield ca.LRP(rules=rules)
    yield ca.LayerLRP(layer=places.layer, rules=rules)


def rectified(places: Places, inputs: Mapping[str, Tensor], explained: list[str]) -> Iterator[ca.Attribution]:
    yield ca.GuidedBackprop()
    yield ca.Deconvolution()
    yield ca.NeuronGuidedBackprop(neuron=places.neuron)
    yield ca.NeuronDeconvolution(neuron=places.neuron)
    if len(inputs) == 1 and inputs[explained[0]].ndim == 4:
        yield ca.GuidedGradCam(layer=places.maps)


def noisy(places: Places) -> Iterator[ca.Attribution]:
    square, variance = ca.Combination.SMOOTHGRAD_SQUARE, ca.Combination.VARGRAD
    yield ca.Saliency(noise=ca.NoiseTunnel(n_samples=3, stdev=0.1))
    yield ca.IntegratedGradients(n_steps=4, noise=ca.NoiseTunnel(variance, n_samples=3, stdev=0.1))
    yield ca.LayerGradCam(layer=places.maps, noise=ca.NoiseTunnel(square, n_samples=2, stdev=0.1))


def perturbations(places: Places, inputs: Mapping[str, Tensor], explained: list[str]) -> Iterator[ca.Attribution]:
    masks = {name: np.arange(inputs[name][0].numel()).reshape(1, *inputs[name].shape[1:]) % 3 for name in explained}
    parts: dict[str, Any] = {"inputs": tuple(explained), "masks": masks}
    begin = {name: absent(places, inputs[name]) for name in explained}
    yield ca.FeatureAblation(baselines=begin, **parts)
    yield ca.ShapleyValues(baselines=begin, **parts)
    yield ca.ShapleyValueSampling(baselines=begin, n_samples=4, **parts)
    yield ca.KernelShap(baselines=begin, n_samples=20, **parts)
    yield ca.Lime(baselines=begin, n_samples=20, **parts)
    yield ca.NeuronFeatureAblation(neuron=places.neuron, baselines=begin, **parts)
    if not places.keeps:
        yield ca.FeaturePermutation(**parts)
    if all(inputs[name].ndim > 1 for name in explained):
        halves = {name: tuple(-(-size // 2) for size in inputs[name].shape[1:]) for name in explained}
        yield ca.Occlusion(inputs=tuple(explained), windows=halves, strides=halves, baselines=begin)


def absent(places: Places, tensor: Tensor) -> Array:
    """What stands for an element that is not there: nought, or for a token another one."""
    if tensor.is_floating_point():
        return to_numpy(torch.zeros_like(tensor[:1]))
    return np.where(np.isin(tensor.numpy(), places.keeps), tensor.numpy(), 3)


def tokens(places: Places, inputs: Mapping[str, Tensor]) -> Iterator[ca.Attribution]:
    ids = next(iter(inputs))
    begin = {ids: absent(places, inputs[ids]) if places.keeps else ca.TokenId(3)}
    yield ca.LayerIntegratedGradients(layer=places.embedding, inputs=(ids,), baselines=begin, n_steps=STEPS)
    yield ca.LayerGradientXActivation(layer=places.embedding)
