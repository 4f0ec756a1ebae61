"""Noise tunnels and quality metrics of attributions."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.str_enum import StrEnum

__all__ = ["Combination", "Infidelity", "NoiseTunnel", "SensitivityMax"]


class Combination(StrEnum):
    """How the attributions of noisy copies are combined; the values are Captum's names."""

    SMOOTHGRAD = "smoothgrad"
    """The mean."""
    SMOOTHGRAD_SQUARE = "smoothgrad_sq"
    """The mean of the squares."""
    VARGRAD = "vargrad"
    """The variance."""


@dataclass(frozen=True)
class NoiseTunnel:
    """The combined attributions of noisy copies of the inputs. Smilkov et al. 2017, arXiv:1706.03825; Adebayo et al.
    2018, arXiv:1810.03292.

    Args:
        combination: how the attributions of the copies are combined.
        n_samples: copies of each example, at least 1.
        stdev: the noise's standard deviation, in units of the input; from 0.
    """

    combination: Combination = Combination.SMOOTHGRAD
    n_samples: int = 5
    stdev: float = 1.0


@dataclass(frozen=True)
class Metric:
    """A quality metric: one number for each example."""


@dataclass(frozen=True)
class Infidelity(Metric):
    """How badly an explanation predicts what a perturbation of the inputs does to the target: the mean of
    (perturbation * explanation - the target's change) squared. Yeh et al. 2019, arXiv:1901.09392.

    Args:
        n_samples: perturbations of each example, at least 1.
        stdev: standard deviation of the normal noise that is subtracted, above 0.
    """

    n_samples: int = 10
    stdev: float = 0.03


@dataclass(frozen=True)
class SensitivityMax(Metric):
    """How much an explanation can move when the input moves within a small ball around it: the largest distance to
    the explanation of a perturbed input, over the explanation's own length. Yeh et al. 2019, arXiv:1901.09392.

    Args:
        n_samples: perturbations of each example, at least 1.
        radius: by how much each element of the inputs may move, above 0.
    """

    n_samples: int = 10
    radius: float = 0.02
