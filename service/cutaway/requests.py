"""What can be asked, as plain typed values: numpy in, no torch and no protobuf.

The client builds these, the wire carries them, the engine reads them. Shapes have the batch on axis 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cutaway.errors import Reason, error
from cutaway.tensors import Array, ArrayLike
from cutaway.word import Word


class Point(Word):
    """Where a hook sits on a module."""

    INPUT = "input"
    """What goes in: a forward pre-hook."""
    OUTPUT = "output"
    """What comes out: a forward hook."""
    GRAD_INPUT = "grad_input"
    """The target's gradient at what goes in: ``grad_input`` of a full backward hook."""
    GRAD_OUTPUT = "grad_output"
    """The target's gradient at what comes out: ``grad_output`` of a full backward hook."""

    @property
    def is_gradient(self) -> bool:
        """Whether a backward pass is needed to see it."""
        return self in (Point.GRAD_INPUT, Point.GRAD_OUTPUT)


PointName: TypeAlias = Literal["input", "output", "grad_input", "grad_output"]


@dataclass(frozen=True)
class Capture:
    """Bring back what modules saw.

    Args:
        module: a name in ``named_modules()``, or a glob: ``*`` is any text within one part of a dotted name,
            ``**`` any text across parts, ``?`` one character.
        at: one point or several.
    """

    module: str
    at: PointName | Point | tuple[PointName | Point, ...] = "output"

    @property
    def points(self) -> tuple[Point, ...]:
        """``at`` as a tuple."""
        several = self.at if isinstance(self.at, tuple) else (self.at,)
        for point in several:
            if point not in list(Point):
                raise error(Reason.INVALID_VALUE, f"{point!r} is none of {', '.join(Point)}", "points")
        return tuple(Point(point) for point in several)


@dataclass(frozen=True, kw_only=True)
class Target:
    """The scalar, one an example, that gradients and attributions are about.

    Args:
        output: the model output it is read from; ``""`` is the model's first.
    """

    output: str = ""


@dataclass(frozen=True)
class PredictedClass(Target):
    """The largest element of an output [batch, classes]; of an output [batch], the element itself."""


@dataclass(frozen=True)
class ClassIndex(Target):
    """Given elements of an output [batch, classes].

    Args:
        indices: one for all examples, or one an example; from 0.
    """

    indices: tuple[int, ...]


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


def field_name(kind: type[Attribution]) -> str:
    """The contract's field for a method: ``layer_grad_cam`` for `LayerGradCam`."""
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
        n_steps: points on the path, 1 to 4096.
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
        attributions: explanations.
        check: how they are checked.
        max_reply_bytes: the largest reply to accept, in bytes; 0 is the server's limit.
    """

    model: str
    tensors: Mapping[str, Array] = field(default_factory=dict)
    raw: tuple[Raw, ...] = ()
    target: Target = field(default_factory=PredictedClass)
    captures: tuple[Capture, ...] = ()
    input_gradients: tuple[str, ...] | None = None
    attributions: tuple[Attribution, ...] = ()
    check: CheckRequest = field(default_factory=CheckRequest)
    max_reply_bytes: int = 0
