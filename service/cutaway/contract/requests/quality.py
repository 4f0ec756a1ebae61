"""Metrics of the quality of an attribution: one number for each example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from cutaway.contract.requests.fields import Count, Positive, bounded
from cutaway.contract.tensors import ArrayLike
from cutaway.contract.values import StrEnum

__all__ = [
    "Complexity",
    "Comprehensiveness",
    "Deletion",
    "EffectiveComplexity",
    "FaithfulnessCorrelation",
    "Imputation",
    "Infidelity",
    "InputInvariance",
    "Insertion",
    "LocalLipschitz",
    "Masks",
    "ParameterRandomisation",
    "PointingGame",
    "Quality",
    "RandomLogit",
    "RandomisedComplexity",
    "RelativeInputStability",
    "RelativeOutputStability",
    "RelativeRepresentationStability",
    "RelevanceMass",
    "RelevanceRank",
    "SensitivityMax",
    "SensitivityMean",
    "Sparseness",
    "Sufficiency",
    "Superpixels",
    "SymmetricRelevanceGain",
]

Fraction = Annotated[float, bounded(lambda value: 0 < value <= 1, "a fraction is above 0, and at most 1")]


@dataclass(frozen=True)
class Superpixels:
    """Regions of similar colours in the pictures of an input, each in one piece: of each picture its own, by SLIC.

    Achanta et al. 2012, doi:10.1109/TPAMI.2012.120, as ``skimage.segmentation.slic`` computes it, without its change to
    CIELAB: what a model takes are numbers of the picture's own range.

    Args:
        segments: about how many regions a picture has.
        compactness: the weight of nearness beside colour: large ones make squares.
    """

    segments: Count = 50
    compactness: Positive = 1.0


Masks: TypeAlias = Mapping[str, ArrayLike | Superpixels]
"""The features of inputs, by name: the number of the feature that each element belongs to, or superpixels.

The name ``""`` is that of all pictures.
"""


@dataclass(frozen=True)
class Metric:
    """A quality metric: one number for each example."""


@dataclass(frozen=True)
class Quality:
    """All quality metrics that apply to an attribution, with their default parameters.

    Those of a region need one, and those of integers or of a layer may not apply: they are left out.

    Args:
        randomisation: whether to explain the model with random weights too, which takes the most passes.
    """

    randomisation: bool = True


# Faithfulness: what the model does without the features that an attribution names.


class Imputation(StrEnum):
    """The kinds of values that take the place of removed features."""

    BASELINE = "baseline"
    """The baseline."""
    NOISY_LINEAR = "noisy_linear"
    """The mean of a pixel's neighbours with some noise: ROAD, Rong et al. 2022, arXiv:2202.00449."""


@dataclass(frozen=True, kw_only=True)
class Removal(Metric):
    """A metric that removes features in the order of their attribution.

    Features are tokens, the pixels of pictures [batch, channels, height, width], elements of other inputs, those of the
    method's own masks, or of ``masks``.

    Args:
        baselines: by input name, what replaces removed features: a number or a tensor; default the method's own
            baselines, else zeros.
        masks: by input name, the number of the feature that each element belongs to, integers of one row or a row an
            example; or `Superpixels`.
        imputation: whether the baseline takes the place of removed features, or another value.
    """

    baselines: Mapping[str, float | ArrayLike] = field(default_factory=dict)
    masks: Masks = field(default_factory=dict)
    imputation: Imputation = Imputation.BASELINE


@dataclass(frozen=True)
class Deletion(Removal):
    """The mean of the target, by trapezoids, while features are removed, the most relevant first (MoRF): lower is
    better.

    The curve has the target with all features, and after each step. Samek et al. 2017, arXiv:1509.06321; Petsiuk et al.
    2018, arXiv:1806.07421.

    Args:
        n_steps: parts in which features are removed, at least 1.
    """

    n_steps: int = 10


@dataclass(frozen=True)
class Insertion(Removal):
    """The mean of the target, by trapezoids, while features come back to an empty input, the most relevant first:
    higher is better.

    Petsiuk et al. 2018, arXiv:1806.07421.

    Args:
        n_steps: parts in which features come back, at least 1.
    """

    n_steps: int = 10


@dataclass(frozen=True)
class SymmetricRelevanceGain(Removal):
    """The mean of the target, by trapezoids, while the least relevant features are removed first (LeRF), less that of
    `Deletion`: higher is better. Blücher et al. 2024, arXiv:2401.06654.

    The curve is the difference of both.

    Args:
        n_steps: parts in which features are removed, at least 1.
    """

    n_steps: int = 10


@dataclass(frozen=True)
class FaithfulnessCorrelation(Removal):
    """The correlation, over random sets of features, between their attribution and the target's fall without them.

    Pearson's, from -1 to 1: higher is better. Bhatt et al. 2020, arXiv:2005.00631.

    Args:
        n_samples: sets of each example, at least 2.
        fraction: the part of the features in a set, above 0 and at most 1.
    """

    n_samples: int = 100
    fraction: Fraction = 0.2


@dataclass(frozen=True)
class Sufficiency(Removal):
    """The target's fall if only the most relevant features are kept: lower is better. DeYoung et al. 2020,
    arXiv:1911.03429.

    Args:
        fraction: the part of the features that is kept, above 0 and at most 1.
    """

    fraction: Fraction = 0.2


@dataclass(frozen=True)
class Comprehensiveness(Removal):
    """The target's fall without the most relevant features: higher is better. DeYoung et al. 2020, arXiv:1911.03429.

    Args:
        fraction: the part of the features that is removed, above 0 and at most 1.
    """

    fraction: Fraction = 0.2


@dataclass(frozen=True)
class Infidelity(Metric):
    """The error by which an explanation mispredicts the effect of a perturbation on the target: lower is better.

    It is the mean of (perturbation * explanation - the target's change) squared. Yeh et al. 2019, arXiv:1901.09392.

    Args:
        n_samples: perturbations of each example, at least 1.
        stdev: standard deviation of the normal noise that is subtracted, above 0.
    """

    n_samples: int = 10
    stdev: Positive = 0.03


# Robustness: how an attribution moves with its input.


@dataclass(frozen=True)
class Nearby(Metric):
    """A metric that explains inputs within a small ball too.

    Args:
        n_samples: perturbations of each example, at least 1.
        radius: by how much each element of the inputs may move, above 0.
    """

    n_samples: int = 10
    radius: Positive = 0.02


@dataclass(frozen=True)
class SensitivityMax(Nearby):
    """The sensitivity of an explanation to the input within a small ball around it: lower is better.

    It is the largest distance to the explanation of a perturbed input, over the explanation's own length. Yeh et al.
    2019, arXiv:1901.09392.
    """


@dataclass(frozen=True)
class SensitivityMean(Nearby):
    """The mean of the distances of which `SensitivityMax` is the largest: lower is better. Bhatt et al. 2020,
    arXiv:2005.00631."""


@dataclass(frozen=True)
class LocalLipschitz(Nearby):
    """The largest distance between explanations, over that of their inputs: lower is better.

    Alvarez-Melis and Jaakkola 2018, arXiv:1806.08049.
    """


@dataclass(frozen=True)
class RelativeInputStability(Nearby):
    """The largest relative change of an explanation, over that of its input: lower is better. Agarwal et al. 2022,
    arXiv:2203.06877.

    Perturbed inputs with another predicted class do not count; NaN if all have one.
    """


@dataclass(frozen=True)
class RelativeOutputStability(Nearby):
    """The largest relative change of an explanation, over the change of the output: lower is better. Agarwal et al.
    2022, arXiv:2203.06877.

    Perturbed inputs with another predicted class do not count; NaN if all have one.
    """


@dataclass(frozen=True, kw_only=True)
class RelativeRepresentationStability(Nearby):
    """The largest relative change of an explanation, over that of what a module returns: lower is better. Agarwal et
    al. 2022, arXiv:2203.06877.

    Perturbed inputs with another predicted class do not count; NaN if all have one.

    Args:
        module: the module, whose first tensor counts.
    """

    module: str


# Randomisation: whether an attribution depends on the weights, and on the class.


@dataclass(frozen=True)
class ParameterRandomisation(Metric):
    """Spearman's correlation with the explanation of the model with random weights: near 0 is better.

    The curve has one value for each step: from the output to the input, more layers have random weights, from a normal
    distribution with the mean and the standard deviation of each parameter. The value is that of the last step, where
    all are random. Adebayo et al. 2018, arXiv:1810.03292.

    From 0.8 on, a check of the attribution is INCONCLUSIVE, with the cause ``INSENSITIVE_TO_WEIGHTS``.

    Args:
        n_steps: parts in which layers get random weights, at least 1.
    """

    n_steps: int = 4


@dataclass(frozen=True)
class RandomisedComplexity(Metric):
    """The relative rise of an explanation's entropy if all weights are random: higher is better. Hedström et al. 2023,
    arXiv:2401.06465 (efficient MPRT)."""


@dataclass(frozen=True)
class RandomLogit(Metric):
    """Spearman's correlation with the explanation of another class, drawn at random: lower is better. Sixt et al. 2020,
    arXiv:1912.09818."""


# Complexity.


@dataclass(frozen=True)
class Sparseness(Metric):
    """The Gini index of the features' magnitudes, from 0 to 1: higher is sparser. Chalasani et al. 2020,
    arXiv:1810.06583."""


@dataclass(frozen=True)
class Complexity(Metric):
    """The entropy of the features' shares of the total magnitude, in nats: lower is simpler. Bhatt et al. 2020,
    arXiv:2005.00631."""


@dataclass(frozen=True)
class EffectiveComplexity(Metric):
    """How many features have a magnitude above a threshold: lower is simpler. Nguyen and Martínez 2020,
    arXiv:2007.07584.

    Args:
        threshold: a part of the largest magnitude, above 0 and at most 1.
    """

    threshold: Fraction = 0.01


# Axioms.


@dataclass(frozen=True)
class InputInvariance(Metric):
    """The relative change of an explanation if a constant is added to the input, and taken off by the model: 0 is best.

    Kindermans et al. 2017, arXiv:1711.00867.

    Args:
        shift: the constant, above 0.
    """

    shift: Positive = 1.0


# Localisation: whether an attribution is where a person marked it.


@dataclass(frozen=True, kw_only=True)
class Localisation(Metric):
    """A metric of a region that is known to matter.

    Args:
        regions: by input name, what is inside: not zero, of one row or a row an example. Of pictures one channel is
            enough.
    """

    regions: Mapping[str, ArrayLike]


@dataclass(frozen=True, kw_only=True)
class PointingGame(Localisation):
    """1 if the most relevant feature is inside the region, else 0: higher is better. Zhang et al. 2016,
    arXiv:1608.00507."""


@dataclass(frozen=True, kw_only=True)
class RelevanceMass(Localisation):
    """The part of the positive relevance that is inside the region: higher is better. Arras et al. 2022,
    arXiv:2003.07258."""


@dataclass(frozen=True, kw_only=True)
class RelevanceRank(Localisation):
    """The part of the region that the most relevant features fill, of which as many count as the region has: higher is
    better. Arras et al. 2022, arXiv:2003.07258."""
