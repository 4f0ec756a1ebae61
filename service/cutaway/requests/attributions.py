"""Attribution methods that use gradients."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cutaway.requests.baselines import Baselines
from cutaway.requests.noise import Metric, NoiseTunnel
from cutaway.requests.targets import Target
from cutaway.str_enum import StrEnum

__all__ = [
    "Attribution",
    "Deconvolution",
    "GuidedBackprop",
    "GuidedGradCam",
    "InputXGradient",
    "IntegratedGradients",
    "InternalInfluence",
    "LayerActivation",
    "LayerConductance",
    "LayerGradCam",
    "LayerGradientXActivation",
    "LayerIntegratedGradients",
    "Quadrature",
    "Saliency",
]


class Quadrature(StrEnum):
    """How a path integral is approximated; the values are Captum's names."""

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
        inputs: names of the inputs explained, the rest passed on unchanged; empty means every floating input.
        noise: explain noisy copies of the inputs and combine them; ``None`` explains the inputs as they are.
        metrics: quality metrics of the attribution, returned with it.
    """

    target: Target | None = None
    inputs: tuple[str, ...] = ()
    noise: NoiseTunnel | None = None
    metrics: tuple[Metric, ...] = ()


def field_name(kind: type[object]) -> str:
    """The contract's field for a method or a verb: ``layer_grad_cam`` for `LayerGradCam`, ``lrp`` for `LRP`."""
    return method_field(kind.__name__)


def method_field(name: str) -> str:
    """The same, by the name of the class."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@dataclass(frozen=True, kw_only=True)
class AtLayer(Attribution):
    """An attribution method that uses a layer.

    Args:
        layer: the module's name.
    """

    layer: str


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
        n_steps: steps on the path, 1 to 4096; at most 1024 for Gauss-Legendre.
        baselines: by input name, a number or a tensor of one row or a row an example; default zeros.
        quadrature: where the path is sampled, and how the integral is approximated.
        max_delta: double the steps, up to the server's limit, until the convergence delta of no example is larger than
            this; the result says how many steps were used. ``None`` uses ``n_steps``.
    """

    n_steps: int = 50
    baselines: Baselines = field(default_factory=dict)
    quadrature: Quadrature = Quadrature.GAUSS_LEGENDRE
    max_delta: float | None = None


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
    2016, arXiv:1610.02391."""


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
    """

    relu: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerConductance(LayerAttribution, PathAttribution):
    """How much of the target's change from the baseline to the input flows through each of a layer's units. Dhamdhere
    et al. 2018, arXiv:1805.12233. The change is estimated from differences between steps, as in Shrikumar et al. 2018,
    arXiv:1807.09946."""


@dataclass(frozen=True, kw_only=True)
class InternalInfluence(LayerAttribution, PathAttribution):
    """The gradient at a layer, averaged over the path from the baseline to the input. Leino et al. 2018,
    arXiv:1802.03788."""


@dataclass(frozen=True, kw_only=True)
class LayerIntegratedGradients(LayerAttribution, PathAttribution):
    """Gradients integrated from a layer's value at the baseline to its value at the input, after Sundararajan et al.
    2017, arXiv:1703.01365. Integer inputs are included: a baseline for token ids is a tensor of ids.

    Args:
        further_layers: layers that go from one value to the other at the same time, and are explained too.
    """

    further_layers: tuple[str, ...] = ()
