"""Explanations that can be asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.requests.targets import Target
from cutaway.tensors import ArrayLike
from cutaway.word import Word


class Quadrature(Word):
    """How a path integral is approximated; the values are Captum's names."""

    GAUSS_LEGENDRE = "gausslegendre"
    RIEMANN_RIGHT = "riemann_right"
    RIEMANN_LEFT = "riemann_left"
    RIEMANN_MIDDLE = "riemann_middle"
    RIEMANN_TRAPEZOID = "riemann_trapezoid"


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """One explanation.

    Args:
        target: the scalar explained; ``None`` is the request's.
        inputs: names of the inputs explained, the rest passed on unchanged; empty means every floating input.
    """

    target: Target | None = None
    inputs: tuple[str, ...] = ()


def field_name(kind: type[object]) -> str:
    """The contract's field for a method or a verb: ``layer_grad_cam`` for `LayerGradCam`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


@dataclass(frozen=True, kw_only=True)
class LayerAttribution(Attribution):
    """An explanation at a layer.

    Args:
        layer: the module's name.
    """

    layer: str


@dataclass(frozen=True, kw_only=True)
class Saliency(Attribution):
    """The gradient at the input, or its magnitude. Simonyan et al. 2013, arXiv:1312.6034."""

    absolute: bool = True


@dataclass(frozen=True, kw_only=True)
class InputXGradient(Attribution):
    """Input times gradient. Shrikumar et al. 2016, arXiv:1605.01713."""


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(Attribution):
    """Gradients integrated from a baseline to the input. Sundararajan et al. 2017, arXiv:1703.01365.

    Args:
        n_steps: points on the path, 1 to 4096; of Gauss-Legendre to 1024.
        baselines: by input name, a number or a tensor of one row or a row an example; default zeros.
        quadrature: how the integral is approximated.
        multiply_by_inputs: False leaves out the factor (input - baseline).
    """

    n_steps: int = 50
    baselines: Mapping[str, float | ArrayLike] = field(default_factory=dict)
    quadrature: Quadrature = Quadrature.GAUSS_LEGENDRE
    multiply_by_inputs: bool = True


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
