"""What can be asked, as plain typed values: numpy in, no torch and no protobuf.

The client builds these, the wire carries them, the engine reads them. Shapes have the batch on axis 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.requests.attributions import (
    AtLayer,
    Attribution,
    Deconvolution,
    GuidedBackprop,
    GuidedGradCam,
    InputXGradient,
    IntegratedGradients,
    InternalInfluence,
    LayerActivation,
    LayerAttribution,
    LayerConductance,
    LayerGradCam,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    PathAttribution,
    Quadrature,
    Saliency,
    field_name,
)
from cutaway.requests.baselines import Baselines, Distributions, TokenId
from cutaway.requests.captures import (
    POINTS,
    AxisReduction,
    Capture,
    Max,
    Mean,
    Norm,
    Point,
    PointName,
    Reduction,
    Slice,
    TopElements,
)
from cutaway.requests.conditions import ExplainIf
from cutaway.requests.differences import (
    DeepLift,
    DeepLiftShap,
    Difference,
    Expectation,
    ExpectedGradient,
    GradientShap,
    LayerDeepLift,
    LayerDeepLiftShap,
    LayerGradientShap,
    NeuronDeepLift,
    NeuronDeepLiftShap,
    NeuronGradientShap,
)
from cutaway.requests.edits import Add, Clamp, Edit, Mix, Replace, Scale, Zero
from cutaway.requests.neurons import (
    NeuronAttribution,
    NeuronConductance,
    NeuronDeconvolution,
    NeuronGradient,
    NeuronGuidedBackprop,
    NeuronIntegratedGradients,
)
from cutaway.requests.noise import Combination, Infidelity, Metric, NoiseTunnel, SensitivityMax
from cutaway.requests.perturbations import (
    FeatureAblation,
    FeaturePermutation,
    Grouped,
    KernelShap,
    LayerFeatureAblation,
    LayerFeaturePermutation,
    Lime,
    NeuronFeatureAblation,
    Occlusion,
    Perturbation,
    ShapleyValues,
    ShapleyValueSampling,
    Surrogate,
)
from cutaway.requests.relevance import (
    LRP,
    AlphaOneBetaZero,
    Epsilon,
    Gamma,
    LayerLRP,
    LrpRule,
    Propagation,
    RelevanceIdentity,
)
from cutaway.requests.targets import (
    ClassIndex,
    Cotangent,
    CrossEntropy,
    LossReduction,
    MeanSquaredError,
    MultiIndex,
    Neuron,
    OutputNorm,
    OutputSum,
    PredictedClass,
    Target,
    TopK,
)
from cutaway.tensors import Array
from cutaway.word import Word

__all__ = [
    "LRP",
    "POINTS",
    "Add",
    "AlphaOneBetaZero",
    "AtLayer",
    "Attribution",
    "AxisReduction",
    "Baselines",
    "Capture",
    "CheckMode",
    "CheckRequest",
    "Clamp",
    "ClassIndex",
    "Combination",
    "Cotangent",
    "CrossEntropy",
    "Deconvolution",
    "DeepLift",
    "DeepLiftShap",
    "Difference",
    "Distributions",
    "Edit",
    "Epsilon",
    "Expectation",
    "ExpectedGradient",
    "ExplainIf",
    "FeatureAblation",
    "FeaturePermutation",
    "Gamma",
    "GradientShap",
    "Grouped",
    "GuidedBackprop",
    "GuidedGradCam",
    "Infidelity",
    "InputXGradient",
    "InspectRequest",
    "IntegratedGradients",
    "InternalInfluence",
    "KernelShap",
    "LayerActivation",
    "LayerAttribution",
    "LayerConductance",
    "LayerDeepLift",
    "LayerDeepLiftShap",
    "LayerFeatureAblation",
    "LayerFeaturePermutation",
    "LayerGradCam",
    "LayerGradientShap",
    "LayerGradientXActivation",
    "LayerIntegratedGradients",
    "LayerLRP",
    "Lime",
    "LossReduction",
    "LrpRule",
    "Max",
    "Mean",
    "MeanSquaredError",
    "Metric",
    "Mix",
    "MultiIndex",
    "Neuron",
    "NeuronAttribution",
    "NeuronConductance",
    "NeuronDeconvolution",
    "NeuronDeepLift",
    "NeuronDeepLiftShap",
    "NeuronFeatureAblation",
    "NeuronGradient",
    "NeuronGradientShap",
    "NeuronGuidedBackprop",
    "NeuronIntegratedGradients",
    "NoiseTunnel",
    "Norm",
    "Occlusion",
    "OutputNorm",
    "OutputSum",
    "PathAttribution",
    "Perturbation",
    "Point",
    "PointName",
    "PredictedClass",
    "Propagation",
    "Quadrature",
    "Raw",
    "Reduction",
    "RelevanceIdentity",
    "Replace",
    "Saliency",
    "Scale",
    "SensitivityMax",
    "ShapleyValueSampling",
    "ShapleyValues",
    "Slice",
    "Surrogate",
    "Target",
    "TokenId",
    "TopElements",
    "TopK",
    "Zero",
    "field_name",
]


class CheckMode(Word):
    """How attributions are checked."""

    OFF = "off"
    """Not at all."""
    SAME_PASS = "same_pass"
    """Raw hooks listen during Captum's own passes."""
    INDEPENDENT = "independent"
    """A second computation, with passes of its own."""


@dataclass(frozen=True)
class CheckRequest:
    """How to check.

    Args:
        mode: where the raw hooks listen.
        relative_tolerance: the largest error by which an attribution may differ from its reference and still agree, as
            a fraction of the reference's largest magnitude; ``None`` is the method's own for the data type.
    """

    mode: CheckMode = CheckMode.SAME_PASS
    relative_tolerance: float | None = None


@dataclass(frozen=True)
class Raw:
    """One example as a file holds it.

    Args:
        data: the bytes.
        media_type: what they are, such as ``image/png``; ``""`` is the adapter's own.
    """

    data: bytes
    media_type: str = ""


@dataclass(frozen=True)
class InspectRequest:
    """One question about one model.

    Args:
        model: ``digits`` or ``digits/versions/1.0``.
        tensors: by forward-argument name, batch first.
        raw: examples for the adapter to decode, instead of ``tensors``.
        target: what gradients and attributions are about.
        captures: what to bring back from inside.
        input_gradients: ``None`` for none, else input names, empty for every floating input.
        edits: changes to what flows through the model, in the order applied.
        compare: also bring back what the unedited model returns.
        attributions: explanations.
        explain_if: explain only the examples whose prediction calls for it; ``None`` explains all.
        check: how they are checked.
        omit_predictions: leave the predictions out; where nothing but values inside the model is asked for, and each
            capture names its ``call``, forward stops behind the last of them.
        max_reply_bytes: the largest reply to accept, in bytes; 0 is the server's limit.
        seed: what methods that draw random numbers draw them from, 0 to 2**63 - 1: the same seed gives the same answer;
            ``None`` draws a seed, and the provenance says which.
        reply_data_type: what floating tensors of the reply are sent as, but for captures that name their own, such as
            ``float16``; ``""`` is as computed.
        compression: how tensors of the reply are packed, ``zstd``; ``""`` is not at all.
        dry_run: run one forward pass and nothing else, and bring back what the reply would be.
    """

    model: str
    tensors: Mapping[str, Array] = field(default_factory=dict)
    raw: tuple[Raw, ...] = ()
    target: Target = field(default_factory=PredictedClass)
    captures: tuple[Capture, ...] = ()
    input_gradients: tuple[str, ...] | None = None
    edits: tuple[Edit, ...] = ()
    compare: bool = False
    attributions: tuple[Attribution, ...] = ()
    explain_if: ExplainIf | None = None
    check: CheckRequest = field(default_factory=CheckRequest)
    omit_predictions: bool = False
    max_reply_bytes: int = 0
    seed: int | None = None
    reply_data_type: str = ""
    compression: str = ""
    dry_run: bool = False
