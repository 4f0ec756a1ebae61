"""Attributions of a neuron: one element of a module's output, in place of a target."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.requests.attributions import Attribution, PathAttribution
from cutaway.requests.targets import Neuron

__all__ = [
    "NeuronConductance",
    "NeuronDeconvolution",
    "NeuronGradient",
    "NeuronGuidedBackprop",
    "NeuronIntegratedGradients",
]


@dataclass(frozen=True, kw_only=True)
class NeuronAttribution(Attribution):
    """An attribution of a neuron, which is its target; only `NeuronConductance` has a second target.

    Args:
        neuron: the neuron.
    """

    neuron: Neuron


@dataclass(frozen=True, kw_only=True)
class NeuronGradient(NeuronAttribution):
    """The gradient of a neuron at the inputs."""


@dataclass(frozen=True, kw_only=True)
class NeuronIntegratedGradients(NeuronAttribution, PathAttribution):
    """Integrated gradients of a neuron, after Sundararajan et al. 2017, arXiv:1703.01365."""


@dataclass(frozen=True, kw_only=True)
class NeuronConductance(NeuronAttribution, PathAttribution):
    """How much of the target's change from the baseline to the input goes from each input through the neuron.
    Dhamdhere et al. 2018, arXiv:1805.12233. Captum's own default here, the trapezoidal rule, has weights that sum to
    ``(n_steps - 1) / n_steps``, and is not this one's."""


@dataclass(frozen=True, kw_only=True)
class NeuronGuidedBackprop(NeuronAttribution):
    """Guided backpropagation of a neuron. Springenberg et al. 2014, arXiv:1412.6806."""


@dataclass(frozen=True, kw_only=True)
class NeuronDeconvolution(NeuronAttribution):
    """Deconvolution of a neuron. Zeiler and Fergus 2013, arXiv:1311.2901."""
