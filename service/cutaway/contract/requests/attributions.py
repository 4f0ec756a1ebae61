"""Attribution methods that use gradients."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import numpy as np

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests.fields import Finite, bounded, given
from cutaway.contract.requests.quality import Metric, Quality
from cutaway.contract.requests.targets import Neuron, Target
from cutaway.contract.tensors import Array, ArrayLike
from cutaway.contract.values import StrEnum

__all__ = [
    "Attribution",
    "Combination",
    "Deconvolution",
    "GuidedBackprop",
    "GuidedGradCam",
    "InputXGradient",
    "IntegratedGradients",
    "InternalInfluence",
    "LLMAttribution",
    "LayerActivation",
    "LayerConductance",
    "LayerGradCam",
    "LayerGradientXActivation",
    "LayerIntegratedGradients",
    "NeuronConductance",
    "NeuronDeconvolution",
    "NeuronGradient",
    "NeuronGuidedBackprop",
    "NeuronIntegratedGradients",
    "NoiseTunnel",
    "ProductBaselines",
    "Quadrature",
    "Saliency",
    "TokenId",
]


# Baselines of attribution methods.


class TokenId(int):
    """A token id as the baseline of an input of token ids: for example that of the padding token.

    Args:
        value: the id.
        keep_special: whether the special tokens of the model's tokenizer, such as [CLS] and [SEP], keep their own ids.
    """

    keep_special: bool

    def __new__(cls, value: int, keep_special: bool = False) -> TokenId:
        """Returns the id."""
        made = super().__new__(cls, value)
        made.keep_special = keep_special
        return made

    def __repr__(self) -> str:
        return f"TokenId({int(self)}{', keep_special=True' if self.keep_special else ''})"

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) is True and self.keep_special == getattr(other, "keep_special", False)

    __hash__ = int.__hash__


Baselines: TypeAlias = Mapping[str, float | ArrayLike | TokenId]
"""The baseline of each input by name, or by ``""`` for all other inputs.

A baseline is a number, a tensor of one row or a row an example, or a token's id.
"""

Distributions: TypeAlias = Mapping[str, ArrayLike]
"""The samples of a distribution by input name, equally many for each input.

Axis 0 is the sample; the axes of the input follow.
"""


class ProductBaselines:
    """Draws baselines of features that have lists of values: of each feature by itself, as Captum's class does.

        baselines={"x": ca.ProductBaselines({"age": [30, 65], ("city", "zone"): [(3, 1), (5, 2)]})(samples=20)}

    What it drew is sent, so that a verdict is about the same baselines, and the same call draws them again. Methods
    without a distribution, such as those of a text, take a sample for each example: repeat it, as ``num_trials`` of
    Captum does, and take the mean.

    Args:
        baseline_values: a list of values of each feature, in their order, or by name. A tuple of names has a list of
            tuples: values that belong together.

    Attributes:
        names: the names, in the order of the columns; empty for a list.
    """

    def __init__(
        self, baseline_values: Sequence[Sequence[Any]] | Mapping[str | tuple[str, ...], Sequence[Any]]
    ) -> None:
        named = baseline_values if isinstance(baseline_values, Mapping) else {}
        self._lists = [*(named.values() if named else baseline_values)]
        self._groups = [key if isinstance(key, tuple) else (key,) for key in named]
        self.names = tuple(name for group in self._groups for name in group)
        for number, values in enumerate(self._lists):
            width = len(self._groups[number]) if named else 1
            if not len(values) or any(width > 1 and len(value) != width for value in values):
                what = f"feature {number} has no values" if not len(values) else f"a value of {self._groups[number]}"
                raise error(Reason.INVALID_VALUE, f"{what}: send lists, with a tuple for each group", "baselines")

    def __array__(self, *_: object, **__: object) -> Array:
        """Refuses an object that was not called."""
        raise error(Reason.INVALID_VALUE, "call it to draw samples: ProductBaselines(...)(samples=20)")

    def __call__(self, samples: int = 1, seed: int = 0) -> Array:
        """Returns baselines, [samples, features], drawn from ``seed`` as Captum draws from Python's generator."""
        draw, grouped = random.Random(seed), [len(group) > 1 for group in self._groups] or [False] * len(self._lists)
        rows = [[draw.choice(values) for values in self._lists] for _ in range(samples)]
        flat = [
            [each for value, is_group in zip(row, grouped) for each in (value if is_group else (value,))]
            for row in rows
        ]
        return np.array(flat)


# Noise tunnels.


class Combination(StrEnum):
    """A way to combine the attributions of noisy copies; the values are Captum's names."""

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
    stdev: Finite = 1.0


@dataclass(frozen=True)
class LLMAttribution:
    """The method run by Captum's class of that name, whose defaults are wrong with transformers 5.

    The target is the log-probability of a text behind one prompt. A verdict compares it with raw passes. A method of a
    layer is run by Captum's ``LLMGradientAttribution``, to which the arguments do not apply. Its values are [1, tokens
    of the prompt], summed over the size of what the layer returns.

    Args:
        use_cached_outputs: whether passes keep keys and values of earlier tokens.
        forward_in_tokens: whether each token of the text has a pass of its own.
    """

    use_cached_outputs: bool = True
    forward_in_tokens: bool = True


class Quadrature(StrEnum):
    """A quadrature rule for a path integral; the values are Captum's names."""

    GAUSS_LEGENDRE = "gausslegendre"
    RIEMANN_RIGHT = "riemann_right"
    RIEMANN_LEFT = "riemann_left"
    RIEMANN_MIDDLE = "riemann_middle"
    RIEMANN_TRAPEZOID = "riemann_trapezoid"


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """An attribution that a request asks for; each method is a subclass.

    Args:
        target: the scalar explained; ``None`` takes the target of the request.
        inputs: names of the inputs explained, the rest passed on unchanged; empty means every floating input, and every
            input of ids of an embedding that the method can replace by a baseline.
        noise: explain noisy copies of the inputs and combine them; ``None`` explains the inputs as they are.
        metrics: quality metrics of the attribution, returned with it.
        quality: all quality metrics that apply to it, behind those of ``metrics``; ``None`` for no more.
        llm_attribution: run the method by Captum's own class for language models; ``None`` runs the method itself.
        layer_path: of a layer that returns several tensors, the one that is explained, by its path: ``"[0]"`` is an
            LSTM's sequence, ``"[1][0]"`` its last hidden state; ``""`` explains what the layer returns.
    """

    target: Target | None = None
    inputs: tuple[str, ...] = ()
    noise: NoiseTunnel | None = None
    llm_attribution: LLMAttribution | None = None
    metrics: tuple[Metric, ...] = ()
    quality: Quality | None = None
    layer_path: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether quality metrics are asked for."""
        return bool(self.metrics) or self.quality is not None


def field_name(kind: type[object]) -> str:
    """Returns the contract's field for a method or a verb: ``layer_grad_cam`` for `LayerGradCam`, ``lrp`` for `LRP`."""
    return method_field(kind.__name__)


@lru_cache
def method_field(name: str) -> str:
    """Returns the contract's field for a class with this ``name``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@dataclass(frozen=True, kw_only=True)
class AtLayer(Attribution):
    """An attribution method that uses a layer.

    Args:
        layer: the module's name.
    """

    layer: Annotated[str, given("name the layer to explain")]


@dataclass(frozen=True, kw_only=True)
class LayerAttribution(AtLayer):
    """An attribution of a layer: its values have the shape of the layer's output."""


@dataclass(frozen=True, kw_only=True)
class Saliency(Attribution):
    """The gradient at the input, or its magnitude. Simonyan et al. 2013, arXiv:1312.6034."""

    absolute: bool = True


@dataclass(frozen=True, kw_only=True)
class InputXGradient(Attribution):
    """Input times gradient. Shrikumar et al. 2016, arXiv:1605.01713."""


@dataclass(frozen=True, kw_only=True)
class PathAttribution(Attribution):
    """An attribution that integrates along the straight path from a baseline to the input.

    Args:
        n_steps: steps on the path, 1 to 10,000.
        baselines: by input name, a number or a tensor of one row or a row an example; default zeros.
        quadrature: where the path is sampled, and how the integral is approximated.
        max_delta: double the steps, up to the server's limit, until the convergence delta of no example is larger than
            this; the result says how many steps were used. ``None`` uses ``n_steps``.
    """

    n_steps: int = 50
    baselines: Baselines = field(default_factory=dict)
    quadrature: Quadrature = Quadrature.GAUSS_LEGENDRE
    max_delta: Annotated[float, bounded(lambda bound: bound >= 0, "a bound is from 0 up")] | None = None


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(PathAttribution):
    """Gradients integrated from a baseline to the input. Sundararajan et al. 2017, arXiv:1703.01365.

    Args:
        multiply_by_inputs: False leaves out the factor (input - baseline).
    """

    multiply_by_inputs: bool = True


@dataclass(frozen=True, kw_only=True)
class GuidedBackprop(Attribution):
    """The gradient, where each ``nn.ReLU`` passes only positive gradients. Springenberg et al. 2014,
    arXiv:1412.6806."""


@dataclass(frozen=True, kw_only=True)
class Deconvolution(Attribution):
    """The gradient, where each ``nn.ReLU`` applies ReLU to the gradient instead of its derivative. Zeiler and Fergus
    2013, arXiv:1311.2901."""


@dataclass(frozen=True, kw_only=True)
class GuidedGradCam(AtLayer):
    """Guided backpropagation times the positive part of a layer's Grad-CAM, scaled to the input. Selvaraju et al.
    2016, arXiv:1610.02391. The channels of the input are on axis 1.

    Args:
        channel_axis: as in `LayerGradCam`.
    """

    channel_axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class LayerActivation(LayerAttribution):
    """The layer's output."""


@dataclass(frozen=True, kw_only=True)
class LayerGradientXActivation(LayerAttribution):
    """The layer's output times the target's gradient at it."""


@dataclass(frozen=True, kw_only=True)
class LayerGradCam(LayerAttribution):
    """Grad-CAM. Selvaraju et al. 2016, arXiv:1610.02391.

    Args:
        relu: True keeps only positive values, as the paper does; False is Captum's default.
        channel_axis: the axis of the layer's channels, which are summed over, in the layer's own output; the other
            axes besides the batch are positions. ``None`` takes 1 for a convolution and -1 for a linear layer or a
            transformer. For other layers a test finds it, or the request is an error.
    """

    relu: bool = False
    channel_axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class LayerConductance(LayerAttribution, PathAttribution):
    """Conductance: the part of the target's change from the baseline to the input that flows through a layer's unit.

    Dhamdhere et al. 2018, arXiv:1805.12233. The change is estimated from differences between steps, as in Shrikumar et
    al. 2018, arXiv:1807.09946.
    """


@dataclass(frozen=True, kw_only=True)
class InternalInfluence(LayerAttribution, PathAttribution):
    """The gradient at a layer, averaged over the path from the baseline to the input. Leino et al. 2018,
    arXiv:1802.03788."""


@dataclass(frozen=True, kw_only=True)
class LayerIntegratedGradients(LayerAttribution, PathAttribution):
    """Gradients integrated from a layer's value at the baseline to its value at the input, after Sundararajan et al.
    2017, arXiv:1703.01365. Ids of embeddings are included: a baseline for token ids is a tensor of ids.

    Args:
        further_layers: layers that go from one value to the other at the same time, and are explained too.
    """

    further_layers: tuple[str, ...] = ()


# Attributions of a neuron: one element of a module's output, in place of a target.


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
    """Conductance of a neuron: the part of the target's change that goes from each input through the neuron.
    Dhamdhere et al. 2018, arXiv:1805.12233. Captum's own default here, the trapezoidal rule, has weights that sum to
    ``(n_steps - 1) / n_steps``, and is not this one's."""


@dataclass(frozen=True, kw_only=True)
class NeuronGuidedBackprop(NeuronAttribution):
    """Guided backpropagation of a neuron. Springenberg et al. 2014, arXiv:1412.6806."""


@dataclass(frozen=True, kw_only=True)
class NeuronDeconvolution(NeuronAttribution):
    """Deconvolution of a neuron. Zeiler and Fergus 2013, arXiv:1311.2901."""
