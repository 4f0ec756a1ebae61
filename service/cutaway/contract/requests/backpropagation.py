"""Attributions from the difference between the input and baselines: DeepLIFT, and expectations over baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.contract.requests.attributions import (
    Attribution,
    Baselines,
    Distributions,
    LayerAttribution,
    NeuronAttribution,
)

__all__ = [
    "LRP",
    "AlphaOneBetaZero",
    "DeepLift",
    "DeepLiftShap",
    "Epsilon",
    "Gamma",
    "GradientShap",
    "LayerDeepLift",
    "LayerDeepLiftShap",
    "LayerGradientShap",
    "LayerLRP",
    "NeuronDeepLift",
    "NeuronDeepLiftShap",
    "NeuronGradientShap",
    "RelevanceIdentity",
]


@dataclass(frozen=True, kw_only=True)
class RescaleAttribution(Attribution):
    """DeepLIFT with the Rescale rule. Shrikumar et al. 2017, arXiv:1704.02685.

    Args:
        baselines: what the input is compared with; default zeros.
    """

    baselines: Baselines = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DeepLift(RescaleAttribution):
    """DeepLIFT: what each element of the input adds to the target's change from a baseline. Shrikumar et al. 2017,
    arXiv:1704.02685, with the Rescale rule."""


@dataclass(frozen=True, kw_only=True)
class LayerDeepLift(LayerAttribution, RescaleAttribution):
    """DeepLIFT at a layer: what each of its units adds to the target's change."""


@dataclass(frozen=True, kw_only=True)
class NeuronDeepLift(NeuronAttribution, RescaleAttribution):
    """DeepLIFT of a neuron: what each element of the input adds to its change."""


@dataclass(frozen=True, kw_only=True)
class Expectation(Attribution):
    """An attribution that is averaged over baselines.

    Args:
        baselines: for every input explained, samples of a distribution.
    """

    baselines: Distributions


@dataclass(frozen=True, kw_only=True)
class DeepLiftShap(Expectation):
    """DeepLIFT, averaged over a distribution of baselines. Lundberg and Lee 2017, arXiv:1705.07874."""


@dataclass(frozen=True, kw_only=True)
class LayerDeepLiftShap(LayerAttribution, Expectation):
    """`DeepLiftShap` at a layer. Lundberg and Lee 2017, arXiv:1705.07874."""


@dataclass(frozen=True, kw_only=True)
class NeuronDeepLiftShap(NeuronAttribution, Expectation):
    """`DeepLiftShap` of a neuron. Lundberg and Lee 2017, arXiv:1705.07874."""


@dataclass(frozen=True, kw_only=True)
class ExpectedGradient(Expectation):
    """The gradient at points drawn between noisy copies of the input and baselines drawn from a distribution.

    Args:
        n_samples: points drawn for each example, at least 1.
        stdev: standard deviation of the noise on the input, from 0.
    """

    n_samples: int = 5
    stdev: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GradientShap(ExpectedGradient):
    """Expected gradients; a seed in the request makes the result reproducible. Erion et al. 2019, arXiv:1906.10670."""


@dataclass(frozen=True, kw_only=True)
class LayerGradientShap(LayerAttribution, ExpectedGradient):
    """Expected gradients at a layer. Erion et al. 2019, arXiv:1906.10670."""


@dataclass(frozen=True, kw_only=True)
class NeuronGradientShap(NeuronAttribution, ExpectedGradient):
    """Expected gradients of a neuron. Erion et al. 2019, arXiv:1906.10670."""


# Layer-wise relevance propagation: the target's value is distributed backwards, layer by layer.


@dataclass(frozen=True)
class LrpRule:
    """A rule for relevance that passes back through a layer.

    Montavon et al. 2019, doi:10.1007/978-3-030-28954-6_10.
    """


@dataclass(frozen=True)
class Epsilon(LrpRule):
    """LRP-epsilon: relevance is distributed in proportion to contributions.

    Args:
        epsilon: added to the sum of the contributions, with its sign; above 0.
    """

    epsilon: float = 1e-9


@dataclass(frozen=True)
class Gamma(LrpRule):
    """LRP-gamma: positive contributions count more.

    Args:
        gamma: by how much, from 0.
    """

    gamma: float = 0.25


@dataclass(frozen=True)
class AlphaOneBetaZero(LrpRule):
    """LRP-alpha1-beta0: only positive contributions count."""


@dataclass(frozen=True)
class RelevanceIdentity(LrpRule):
    """The identity rule: relevance passes unchanged."""


@dataclass(frozen=True, kw_only=True)
class Propagation(Attribution):
    """Relevance of the target.

    Args:
        rules: by module name, how relevance passes through it; default are Captum's rules, by type: LRP-epsilon through
            convolutions, linear and pooling layers and batch norms, and unchanged through activations and dropout.
    """

    rules: Mapping[str, LrpRule] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LRP(Propagation):
    """Layer-wise relevance propagation. Bach et al. 2015, doi:10.1371/journal.pone.0130140."""


@dataclass(frozen=True, kw_only=True)
class LayerLRP(LayerAttribution, Propagation):
    """The relevance of a layer's units. Bach et al. 2015, doi:10.1371/journal.pone.0130140."""
