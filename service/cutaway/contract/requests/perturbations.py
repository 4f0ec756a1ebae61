"""Attributions from forward passes on changed inputs, without gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cutaway.contract.requests.attributions import Attribution, Baselines, LayerAttribution, NeuronAttribution
from cutaway.contract.requests.quality import Masks

__all__ = [
    "AxisSizes",
    "FeatureAblation",
    "FeaturePermutation",
    "KernelShap",
    "LayerFeatureAblation",
    "LayerFeaturePermutation",
    "Lime",
    "NeuronFeatureAblation",
    "Occlusion",
    "ShapleyValueSampling",
    "ShapleyValues",
]


AxisSizes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Sizes along the axes after the batch by input name."""


@dataclass(frozen=True, kw_only=True)
class Perturbation(Attribution):
    """An attribution from forward passes on changed inputs; it can also explain inputs that are not floating."""


@dataclass(frozen=True, kw_only=True)
class Grouped(Perturbation):
    """A perturbation of features.

    Args:
        masks: by input name, the number of the feature that each element belongs to, integers of one row or a row an
            example; equal numbers in several inputs are one feature. Or `Superpixels`, of one input or of all pictures.
            Default: each element is a feature.
    """

    masks: Masks = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BaselinePerturbation(Perturbation):
    """A perturbation that replaces parts of the inputs by baselines.

    Args:
        baselines: by input name, a number or a tensor of one row or a row an example; default zeros.
    """

    baselines: Baselines = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FeatureAblation(Grouped, BaselinePerturbation):
    """Feature ablation: the target's change when a feature is replaced by its baseline.

    Zeiler and Fergus 2013, arXiv:1311.2901, replaced parts of images.
    """


@dataclass(frozen=True, kw_only=True)
class Occlusion(BaselinePerturbation):
    """Occlusion: the target's change when a window is replaced by a baseline.

    An element gets the mean over the windows that contain it. Zeiler and Fergus 2013, arXiv:1311.2901.

    Args:
        windows: by input name, the window's size along each axis after the batch; one for each input explained. Without
            a name, that of the only one.
        strides: by input name, how far the window moves along each of these axes; default 1.
    """

    windows: AxisSizes
    strides: AxisSizes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FeaturePermutation(Grouped):
    """Feature permutation: the target's change when a feature's values are permuted between rows at random.

    A seed in the request makes the result reproducible. Fisher et al. 2018, arXiv:1801.01489.
    """


@dataclass(frozen=True, kw_only=True)
class ShapleyValues(Grouped, BaselinePerturbation):
    """Shapley values: the mean contribution of a feature over all orders of adding features to the baseline.

    Shapley 1953, doi:10.1515/9781400881970-018.
    """


@dataclass(frozen=True, kw_only=True)
class ShapleyValueSampling(Grouped, BaselinePerturbation):
    """Shapley values over orders drawn at random; a seed in the request makes them reproducible. Castro et al. 2009,
    doi:10.1016/j.cor.2008.04.004.

    Args:
        n_samples: orders drawn, at least 1.
    """

    n_samples: int = 25


@dataclass(frozen=True, kw_only=True)
class Surrogate(Grouped, BaselinePerturbation):
    """The weights of a simple model of the target, fitted to random replacements of features. A seed in the request
    makes them reproducible.

    Args:
        n_samples: draws, at least 1; more than twice as many as there are features determine the weights.
    """

    n_samples: int = 25


@dataclass(frozen=True, kw_only=True)
class KernelShap(Surrogate):
    """A linear model whose weights approach Shapley values. Lundberg and Lee 2017, arXiv:1705.07874."""


@dataclass(frozen=True, kw_only=True)
class Lime(Surrogate):
    """A sparse linear model around the input: Lasso, with draws weighted by their distance. Ribeiro et al. 2016,
    arXiv:1602.04938."""


@dataclass(frozen=True, kw_only=True)
class NeuronFeatureAblation(NeuronAttribution, Grouped, BaselinePerturbation):
    """Feature ablation of a neuron: its change when a feature is replaced by its baseline."""


@dataclass(frozen=True, kw_only=True)
class LayerFeatureAblation(LayerAttribution):
    """Layer ablation: the target's change when a unit of a layer is replaced by a number.

    Args:
        baseline: the number.
    """

    baseline: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LayerFeaturePermutation(LayerAttribution):
    """Layer permutation: the target's change when a unit's values are permuted between rows at random.

    A seed in the request makes the result reproducible. Fisher et al. 2018, arXiv:1801.01489.
    """
