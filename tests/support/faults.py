"""The catalogue of faults: models and requests whose attributions are wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause
from tests.support.broken_captum import spoiled, stale
from tests.support.checked_attributions import Build, noise, wired
from tests.support.function_module import Through

IMAGE = {"x": noise(3, 3, 8, 8)}
VECTOR = {"x": noise(3, 8)}


def pooled(m: Any, h: Tensor) -> Tensor:
    return m.head(h.mean((2, 3)))


def convolutions(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Two convolutions and a head, and whatever lies between them."""
    return wired(
        wiring,
        a=lambda: nn.Conv2d(3, 8, 3, padding=1),
        b=lambda: nn.Conv2d(8, 8, 3, padding=1),
        head=lambda: nn.Linear(8, 3),
        **parts,
    )


def layers(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Two linear layers, and whatever lies between them."""
    return wired(wiring, a=lambda: nn.Linear(8, 16), b=lambda: nn.Linear(16, 3), **parts)


class Rounded(torch.autograd.Function):
    """A straight-through estimator: forward rounds, backward pretends that it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Squared(torch.autograd.Function):
    """A square whose backward forgot the factor two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x


def training_norm(m: Any, x: Tensor) -> Tensor:
    m.norm.train()
    return pooled(m, torch.tanh(m.norm(m.a(x))))


def changing_gradient(m: Any, x: Tensor) -> Tensor:
    h = torch.tanh(m.a(x))
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient * 2)
    return m.b(h)


@contextmanager
def hooked_from_elsewhere() -> Iterator[None]:
    """Somebody left a hook that halves gradients."""
    handle = SHARED.a.register_full_backward_hook(lambda module, into, out: (into[0] / 2,))
    try:
        yield
    finally:
        handle.remove()


def with_last(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.tanh(m.a(x) + 0.1 * m.a(x)[-1:]))


SHARED: Any = layers(lambda m, x: m.b(torch.tanh(m.a(x))))()
SMOOTH = layers(lambda m, x: m.b(torch.tanh(m.a(x))))


def saturated(m: Any, x: Tensor) -> Tensor:
    return (m.b(torch.tanh(m.a(x))) + torch.tensor([40.0, 0, 0])).softmax(1)


def bent(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.tanh(5 * m.a(x)))


def twins(m: Any, x: Tensor) -> Tensor:
    """Channels, and nearly the same again with the opposite sign: Grad-CAM's sum over them is what rounding leaves."""
    h = m.act(torch.cat([x, -x * 1.0078125], 1))
    return m.b(h.mean(2)[:, :16] @ torch.ones(16, 16).to(h))


def far_below_zero(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(m.a(x) - 1e6))


@contextmanager
def of_an_earlier_call(kind: type[Any]) -> Iterator[None]:
    """The answer to what somebody asked before."""
    with stale(kind):
        kind(SMOOTH()).attribute(VECTOR["x"] * 2 + 1, target=0)
        yield


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way to be wrong: the reason must say ``words``, such as the place.

    Attributes:
        around: what is done to Captum meanwhile.
        check: which of the checks finds it: 0 the identity, 1 completeness.
    """

    build: Callable[[], nn.Module]
    asked: Attribution
    cause: Cause
    words: str
    inputs: dict[str, Tensor] = dataclasses.field(default_factory=lambda: VECTOR)
    around: Callable[[], Any] = nullcontext
    check: int = 0


GUIDED = convolutions(lambda m, x: pooled(m, m.r(m.b(F.relu(m.a(x))))), r=nn.ReLU)
STEPS = ca.IntegratedGradients(n_steps=32)


FAULTS: dict[str, Fault] = {
    "a functional relu under guided backpropagation": Fault(GUIDED, ca.GuidedBackprop(), Cause.FUNCTIONAL_NONLINEARITY,
        ":relu#0", IMAGE),
    "a functional relu under deconvolution": Fault(GUIDED, ca.Deconvolution(), Cause.FUNCTIONAL_NONLINEARITY, ":relu#0",
        IMAGE),
    "a functional relu under guided Grad-CAM": Fault(GUIDED, ca.GuidedGradCam(layer="a"), Cause.FUNCTIONAL_NONLINEARITY,
        ":relu#0", IMAGE),
    "a functional relu under DeepLIFT": Fault(layers(lambda m, x: m.b(F.relu(m.a(x)))), ca.DeepLift(),
        Cause.FUNCTIONAL_NONLINEARITY, ":relu#0"),
    "a functional relu under DeepLIFT over a distribution": Fault(layers(lambda m, x: m.b(F.relu(m.a(x)))),
        ca.DeepLiftShap(baselines={"x": noise(2, 8, seed=5).numpy()}), Cause.FUNCTIONAL_NONLINEARITY, ":relu#0"),
    "an activation that DeepLIFT has no rule for": Fault(layers(lambda m, x: m.b(m.act(m.a(x))), act=nn.GELU),
        ca.DeepLift(), Cause.FUNCTIONAL_NONLINEARITY, "act:gelu#0"),
    "an addition under relevance propagation": Fault(layers(lambda m, x: m.b(m.a(x) + m.c(x)),
        c=lambda: nn.Linear(8, 16)), ca.LRP(), Cause.FUNCTIONAL_NONLINEARITY, ":add#0"),
    "a layer's output changed in place behind it, while its units are ablated": Fault(layers(lambda m,
        x: m.b(m.a(x).add_(1))), ca.LayerFeatureAblation(layer="a"), Cause.OTHER_PASSES, "Captum"),
    "a layer that is called twice": Fault(wired(lambda m, x: m.b(m.a(torch.tanh(m.a(x)))), a=lambda: nn.Linear(8, 8),
        b=lambda: nn.Linear(8, 3)), ca.LayerActivation(layer="a"), Cause.MODULE_REUSED, "2 times"),
    "dropout left on": Fault(layers(lambda m, x: m.b(F.dropout(m.a(x), 0.5, training=True))), ca.Saliency(),
        Cause.RANDOM_FORWARD, ":dropout#0"),
    "dropout left on, on the way of a path": Fault(layers(lambda m, x: m.b(m.act(m.a(x))),
        act=lambda: Through(lambda h: F.dropout(h, 0.5, training=True))), STEPS, Cause.RANDOM_FORWARD, "act:dropout#0"),
    "noise in the forward pass": Fault(layers(lambda m, x: m.b(m.act(m.a(x))),
        act=lambda: Through(lambda h: h + torch.randn_like(h))), ca.InputXGradient(), Cause.RANDOM_FORWARD, "act"),
    "a batch norm in training mode": Fault(convolutions(training_norm, norm=lambda: nn.BatchNorm2d(8)), ca.Saliency(),
        Cause.ROWS_COUPLED, "norm", IMAGE),
    "rows that read each other": Fault(layers(with_last), ca.InputXGradient(), Cause.ROWS_COUPLED, ":getitem#0"),
    "a path that is cut": Fault(layers(lambda m, x: m.b(torch.tanh(m.a(x)).round())), ca.Saliency(), Cause.NO_GRADIENT,
        "'b' and not 'a'"),
    "a path that is cut behind several layers": Fault(layers(lambda m,
        x: m.b(torch.tanh(m.c(torch.tanh(m.a(x)))).round()), c=lambda: nn.Linear(16, 16)), ca.Saliency(),
        Cause.NO_GRADIENT, "'b' and not 'c'"),
    "a branch that is detached": Fault(layers(lambda m, x: m.b(torch.tanh(m.a(x)) + m.a(x).detach())), ca.Saliency(),
        Cause.WRONG_BACKWARD, "detached"),
    "a straight-through estimator": Fault(layers(lambda m, x: m.b(m.act(m.a(x))), act=lambda: Through(Rounded.apply)),
        STEPS, Cause.WRONG_BACKWARD, "Rounded in 'act'", check=1),
    "an autograd function with a wrong backward": Fault(layers(lambda m, x: m.b(m.act(m.a(x))),
        act=lambda: Through(Squared.apply)), ca.Saliency(), Cause.WRONG_BACKWARD, "Squared in 'act'"),
    "a backward hook that somebody left behind": Fault(lambda: SHARED, ca.Saliency(), Cause.WRONG_BACKWARD,
        "hooks on 'a'", around=hooked_from_elsewhere),
    "a hook on a tensor that changes the gradient": Fault(layers(changing_gradient), ca.InputXGradient(),
        Cause.WRONG_BACKWARD, "hook on a tensor"),
    "terms that cancel in bfloat16": Fault(lambda: layers(twins, act=nn.Identity)().bfloat16(),
        ca.LayerGradCam(layer="act", channel_axis=1), Cause.CANCELLATION, "rounding",
        {"x": noise(3, 8, 4, dtype=torch.bfloat16)}),
    "two steps on a path that bends": Fault(layers(bent), ca.IntegratedGradients(n_steps=2), Cause.TOO_FEW_STEPS,
        "n_steps=", check=1),
    "a baseline that is the input": Fault(SMOOTH, ca.IntegratedGradients(baselines={"x": VECTOR["x"].numpy()}),
        Cause.BASELINE_IS_INPUT, "every row"),
    "one row that is its own baseline": Fault(SMOOTH, ca.FeatureAblation(baselines={"x": VECTOR["x"][1:2].numpy()}),
        Cause.BASELINE_IS_INPUT, "row 1"),
    "a saturated softmax": Fault(layers(saturated), ca.Saliency(), Cause.SATURATED, "logit"),
    "a rectifier that lets nothing through": Fault(layers(far_below_zero), ca.Saliency(), Cause.NO_GRADIENT, "'b'"),
    "NaNs": Fault(layers(lambda m, x: m.b(torch.sqrt(m.a(x) * 0))), ca.Saliency(), Cause.NOT_FINITE, "not"),
    "Captum's answer, scaled": Fault(SMOOTH, ca.Saliency(), Cause.UNKNOWN, "do not rely",
        around=lambda: spoiled(attr.Saliency, lambda v: v * 1.01)),
    "Captum's answer, shifted": Fault(SMOOTH, STEPS, Cause.UNKNOWN, "do not rely",
        around=lambda: spoiled(attr.IntegratedGradients, lambda v: v + 0.01)),
    "Captum's answer, its rows exchanged": Fault(SMOOTH, STEPS, Cause.UNKNOWN, "do not rely",
        around=lambda: spoiled(attr.IntegratedGradients, lambda v: v.flip(0))),
    "Captum's answer, its features exchanged": Fault(SMOOTH, ca.InputXGradient(), Cause.UNKNOWN, "do not rely",
        around=lambda: spoiled(attr.InputXGradient, lambda v: v.flip(1))),
    "Captum's answer of an earlier call": Fault(SMOOTH, ca.Saliency(), Cause.UNKNOWN, "do not rely",
        around=lambda: of_an_earlier_call(attr.Saliency)),
    "Captum's answer, partly not a number": Fault(SMOOTH, ca.Saliency(), Cause.NOT_FINITE, "not finite",
        around=lambda: spoiled(attr.Saliency, lambda v: v.masked_fill(v == v.max(), float("nan")))),
    "Captum's weights of trapezoids": Fault(SMOOTH,
        dataclasses.replace(STEPS, quadrature=ca.Quadrature.RIEMANN_TRAPEZOID), Cause.QUADRATURE_WEIGHTS,
        "use another quadrature"),
}  # fmt: skip
