"""Layer-wise relevance propagation: the target's value is distributed backwards, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.requests.attributions import Attribution, LayerAttribution

__all__ = ["LRP", "AlphaOneBetaZero", "Epsilon", "Gamma", "LayerLRP", "RelevanceIdentity"]


@dataclass(frozen=True)
class LrpRule:
    """How relevance passes backwards through a layer. Montavon et al. 2019, doi:10.1007/978-3-030-28954-6_10."""


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
    """Relevance passes unchanged."""


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
