"""A table of faults: kinds of faults, methods and data types, in both ways to check, and what became of each.

    python -m tests.matrix.faults               all of them
    python -m tests.matrix.faults drift edits   only kinds whose names contain one of these words
    python -m tests.matrix.faults --controls    the sound twins too, which must get AGREES

Each fault changes the attribution by at least 5 %: the effect is the distance of the faulty answer from the right one,
over the length of the right one. The right one is that of a sound twin of the model, or of Captum as it is. The exit
status is 1 if a fault gets AGREES, or a cause that is not among those allowed, or has a smaller effect.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode
from cutaway.contract.results import Cause, Verdict
from tests.matrix.family_faults import FAMILY_KINDS
from tests.matrix.fault import DTYPES, Fault, outcomes, right_answer
from tests.support.broken_captum import spoiled, stale
from tests.support.checked_attributions import CHECKED, Build, noise, wired
from tests.support.faults import IMAGE, SMOOTH, VECTOR, convolutions, layers, pooled
from tests.support.function_module import Through
from tests.support.scaled_gradients import NETWORKS
from tests.support.wrong_parts import (
    COUPLED,
    CUT,
    DRAWS,
    FUNCTIONS,
    RELUS,
    WRONG,
    Part,
    Rarely,
    both_doubled,
    changed,
    recomputed_otherwise,
    scaled,
    with_generators,
)

LARGE = {"x": 4 * noise(3, 8)}
ZEROS = {"x": np.zeros((2, 8), np.float32)}
SAMPLES = {"x": noise(3, 8, seed=5).numpy()}
LINEAR = partial(nn.Linear, 16, 16)


# The models.


def between(part: Part, **parts: Callable[[], Any]) -> Build:
    """Three layers with ReLUs, and ``part`` behind the first."""
    return layers(lambda m, x: m.b(m.r2(m.c(m.r(part(m.a(x)))))), c=LINEAR, r=nn.ReLU, r2=nn.ReLU, **parts)


def smooth(part: Part) -> Build:
    """Two layers with a tangent, and ``part`` behind the first."""
    return layers(lambda m, x: m.b(torch.tanh(part(m.a(x)))))


def image(part: Part) -> Build:
    return convolutions(lambda m, x: pooled(m, m.r2(m.b(m.r(part(m.a(x)))))), r=nn.ReLU, r2=nn.ReLU)


def same(h: Tensor) -> Tensor:
    return h


# Methods that take gradients, at the input and at layers before a fault behind "a".
AT_INPUT: tuple[Attribution, ...] = (
    ca.Saliency(absolute=False), ca.InputXGradient(), ca.IntegratedGradients(n_steps=32),
    ca.GradientShap(baselines=ZEROS, n_samples=8), ca.DeepLift(), ca.DeepLiftShap(baselines=SAMPLES),
    ca.GuidedBackprop(), ca.Deconvolution(), ca.Saliency(absolute=False, noise=ca.NoiseTunnel(n_samples=4, stdev=0.1)),
    ca.NeuronGradient(neuron=ca.Neuron("c", (1,))),
    ca.NeuronIntegratedGradients(neuron=ca.Neuron("c", (1,)), n_steps=16),
    ca.NeuronConductance(neuron=ca.Neuron("c", (1,)), n_steps=16), ca.NeuronDeepLift(neuron=ca.Neuron("c", (1,))),
    ca.NeuronDeepLiftShap(neuron=ca.Neuron("c", (1,)), baselines=SAMPLES),
    ca.NeuronGuidedBackprop(neuron=ca.Neuron("c", (1,))), ca.NeuronDeconvolution(neuron=ca.Neuron("c", (1,))),
    ca.NeuronGradientShap(neuron=ca.Neuron("c", (1,)), baselines=ZEROS, n_samples=8),
)  # fmt: skip
AT_LAYER: tuple[Attribution, ...] = (
    ca.LayerGradientXActivation(layer="a"), ca.LayerConductance(layer="a", n_steps=32),
    ca.InternalInfluence(layer="a", n_steps=32), ca.LayerIntegratedGradients(layer="a", n_steps=32),
    ca.LayerGradientShap(layer="a", baselines=ZEROS, n_samples=8), ca.LayerDeepLift(layer="a"),
    ca.LayerDeepLiftShap(layer="a", baselines=SAMPLES),
)  # fmt: skip
WITHOUT_GRADIENTS: tuple[Attribution, ...] = (
    ca.FeatureAblation(), ca.FeaturePermutation(), ca.Occlusion(windows={"x": (2,)}),
    ca.ShapleyValueSampling(n_samples=8), ca.KernelShap(n_samples=64), ca.Lime(n_samples=64), ca.LRP(),
    ca.LayerLRP(layer="a"), ca.LayerActivation(layer="a"), ca.LayerFeatureAblation(layer="a"),
    ca.LayerFeaturePermutation(layer="a"), ca.NeuronFeatureAblation(neuron=ca.Neuron("c", (1,))),
)  # fmt: skip
ON_IMAGES: tuple[Attribution, ...] = (ca.LayerGradCam(layer="a"), ca.GuidedGradCam(layer="a"))

FEW: tuple[Attribution, ...] = (ca.InputXGradient(), ca.IntegratedGradients(n_steps=32))

WRONG_CAUSE = frozenset({Cause.WRONG_BACKWARD})
RANDOM_CAUSE = frozenset({Cause.RANDOM_FORWARD})
FUNCTIONAL = frozenset({Cause.FUNCTIONAL_NONLINEARITY})
SPOILED = frozenset({Cause.UNKNOWN, Cause.OTHER_PASSES})


# The kinds.


def twins(
    kind: str, name: str, asked: Attribution, wiring: Callable[[Part], Build], part: Part, causes: Any = WRONG_CAUSE,
    twin: Part = same, **more: Any,
) -> Fault:  # fmt: skip
    """A fault in one part of a model; its sound twin has ``twin`` there."""
    return Fault((kind, name), asked, wiring(part), wiring(twin), causes, **more)


def wrong_backward() -> Iterator[Fault]:
    for asked in (*AT_INPUT, *AT_LAYER):
        yield twins("backward", "a factor, by every method", asked, between, scaled(1.2))
    for asked in ON_IMAGES:
        yield twins("backward", "a factor, by every method", asked, image, scaled(1.2), inputs=IMAGE)
    for (name, part), asked in itertools.product(WRONG.items(), FEW):
        if "row" in name and isinstance(asked, ca.IntegratedGradients):
            continue  # of the many rows of a path that is one
        twin = {"a custom operator": torch.sin, "saved tensors rounded": torch.sin}.get(name, same)
        causes = WRONG_CAUSE | ({Cause.UNKNOWN} if "noise" in name else set())  # other noise in other passes
        yield twins("backward", name, asked, smooth, part, causes, twin)
    for asked in FEW:
        checkpoint = _built(lambda: smooth(recomputed_otherwise()))
        yield Fault(("backward", "a checkpoint"), asked, checkpoint, smooth(torch.tanh))
    for (name, part), asked in itertools.product(CUT.items(), FEW):
        yield twins("cut", name, asked, _branched, part)


def _built(make: Callable[[], Build]) -> Build:
    """A builder of models of which each has a part of its own."""
    return lambda: make()()


def _branched(part: Part) -> Build:
    return layers(lambda m, x: m.b(torch.tanh(m.a(x)) + part(m.c(x))), c=partial(nn.Linear, 8, 16))


def factors() -> Iterator[Fault]:
    for (name, (network, shape)), factor in itertools.product(NETWORKS.items(), (0.8, 0.9, 1.06, 1.2, 2.0, -1.0)):
        yield Fault(
            ("factor", f"{factor:g} in a network of the kind {name}"),
            ca.InputXGradient(), _network(network, factor), _network(network, 1.0), inputs={"x": noise(2, *shape)},
        )  # fmt: skip
    for name, wiring in _DEPTHS.items():
        at_depth: Callable[[Part], Build] = lambda part, wiring=wiring: layers(partial(wiring, part))  # type: ignore[misc]  # noqa: E731
        yield twins("factor", name, ca.InputXGradient(), at_depth, scaled(1.2))
    yield twins("factor", "behind a batch norm", ca.InputXGradient(), _normed, scaled(1.2), inputs=IMAGE)


def _normed(part: Part) -> Build:
    return convolutions(lambda m, x: pooled(m, torch.relu(part(m.n(m.a(x))))), n=partial(nn.BatchNorm2d, 8))


def _network(build: Callable[[nn.Module], nn.Module], factor: float) -> Build:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return build(nn.Identity() if factor == 1 else Through(scaled(factor))).eval()

    return made


_DEPTHS: dict[str, Callable[..., Tensor]] = {
    "at the input": lambda part, m, x: m.b(torch.tanh(m.a(part(x)))),
    "at the output": lambda part, m, x: part(m.b(torch.tanh(m.a(x)))),
    "at half of the units": lambda part, m, x: m.b(torch.cat([part(torch.tanh(m.a(x))[:, :8]),
        torch.tanh(m.a(x))[:, 8:]], 1)),
    "on one of two branches": lambda part, m, x: m.b(torch.tanh(m.a(x)) + part(m.a(x).sin())),
    "before logits of which one is masked": lambda part, m, x:
        m.b(torch.tanh(part(m.a(x)))).masked_fill(torch.tensor([False, False, True]), -1e9),
    "before a logit of minus infinity": lambda part, m, x:
        m.b(torch.tanh(part(m.a(x)))).masked_fill(torch.tensor([False, False, True]), float("-inf")),
    "where another row is not a number": lambda part, m, x: m.b(torch.tanh(part(m.a(x)))),
}  # fmt: skip


def hooks() -> Iterator[Fault]:
    for (name, prepare), asked in itertools.product(_HOOKS.items(), FEW):
        build = _moduled()
        for when in ("before", "after") if name not in _ALWAYS else ("after",):
            before = [(asked, VECTOR)] if when == "after" else []
            causes = RANDOM_CAUSE if "grad mode" in name else WRONG_CAUSE
            yield Fault(
                ("hook", f"{name}, registered {when} the first request"), asked, build, build, causes,
                before=before, prepare=prepare, around=_without_global_hooks,
            )  # fmt: skip


def _moduled() -> Build:
    return layers(lambda m, x: m.b(m.t(m.a(x))), t=nn.Tanh)


@contextmanager
def _without_global_hooks() -> Iterator[None]:
    try:
        yield
    finally:
        for handle in _GLOBAL:
            handle.remove()
        _GLOBAL.clear()


_GLOBAL: list[Any] = []


def _halved(module: nn.Module, into: Any, out: Any) -> Any:
    return tuple(each if each is None else each / 2 for each in into) if isinstance(module, nn.Tanh) else None


def _hooking(module: nn.Module, into: Any, out: Any) -> None:
    if isinstance(module, nn.Tanh) and out.requires_grad:
        out.register_hook(lambda gradient: gradient / 2)


def _in_grad_mode(module: nn.Module, into: Any, out: Any) -> Any:
    return out * 1.2 if isinstance(module, nn.Tanh) and torch.is_grad_enabled() else None


def _passing(module: nn.Module, into: Any, out: Any) -> Any:
    return scaled(0.5)(out) if isinstance(module, nn.Tanh) else None


_MODULES = nn.modules.module
_HOOKS: dict[str, Callable[[Any], Any]] = {
    "a backward hook": lambda m: m.t.register_full_backward_hook(_halved),
    "a backward pre-hook": lambda m: m.t.register_full_backward_pre_hook(lambda _, out: (out[0] / 2,)),
    "a forward hook that hooks the tensor": lambda m: m.t.register_forward_hook(_hooking),
    "a forward hook with a wrong backward": lambda m: m.t.register_forward_hook(_passing),
    "a forward pre-hook with a wrong backward": lambda m: m.t.register_forward_pre_hook(lambda _,
        given: (scaled(0.5)(given[0]),)),
    "a forward hook that changes values in grad mode": lambda m: m.t.register_forward_hook(_in_grad_mode),
    "a backward hook of all modules": lambda m: _GLOBAL.append(_MODULES.register_module_full_backward_hook(_halved)),
    "a forward hook of all modules that hooks tensors": lambda m:
        _GLOBAL.append(_MODULES.register_module_forward_hook(_hooking)),
    "a forward hook of all modules in grad mode": lambda m:
        _GLOBAL.append(_MODULES.register_module_forward_hook(_in_grad_mode)),
}  # fmt: skip
_ALWAYS = ("a backward hook of all modules",)


def inputs_of_many() -> Iterator[Fault]:
    inputs = {**VECTOR, "y": noise(3, 8, seed=2), "z": noise(3, 8, seed=3)}
    for wrong, asked in itertools.product("xyz", (*FEW, ca.Saliency(absolute=False))):
        parts: dict[str, Part] = {name: scaled(-1.0) if name == wrong else same for name in "xyz"}
        build, sound = _of_three(parts), _of_three(dict.fromkeys("xyz", same))
        yield Fault(("inputs", f"the gradient of {wrong} reversed"), asked, build, sound, inputs=inputs)
    two = {"x": VECTOR["x"], "y": noise(3, 8, seed=2)}
    for asked in FEW:
        build, sound = (
            layers(lambda m, x, y, add=add: m.b(torch.tanh(m.a(add(x, y))))) for add in (both_doubled, torch.add)
        )
        yield Fault(("inputs", "wrong only where both are explained"), asked, build, sound, inputs=two)
        yield Fault(
            ("inputs", "the second, beside token ids"), asked, _of_ids(scaled(1.5)), _of_ids(same),
            inputs={"ids": torch.arange(15).reshape(3, 5), "y": noise(3, 16, seed=2)},
        )  # fmt: skip
    ids = {"ids": torch.arange(15).reshape(3, 5)}
    ones = {"ids": np.ones((1, 5), np.int64)}
    for asked in (
        ca.LayerGradientXActivation(layer="words"),
        ca.LayerIntegratedGradients(layer="words", n_steps=16, baselines=ones),
    ):
        yield twins("inputs", "behind an embedding", asked, _of_words, scaled(1.5), inputs=ids)


def _of_three(parts: Mapping[str, Part]) -> Build:
    return layers(
        lambda m, x, y, z: m.b(torch.tanh(m.a(parts["x"](x)) + m.c(parts["y"](y)) + m.d(parts["z"](z)))),
        c=partial(nn.Linear, 8, 16), d=partial(nn.Linear, 8, 16),
    )  # fmt: skip


def _of_ids(part: Part) -> Build:
    return layers(lambda m, ids, y: m.b(torch.tanh(m.words(ids).sum(1) + part(y))), words=partial(nn.Embedding, 20, 16))


def _of_words(part: Part) -> Build:
    return layers(lambda m, ids: m.b(torch.tanh(part(m.words(ids))).sum(1)), words=partial(nn.Embedding, 20, 16))


def edits() -> Iterator[Fault]:
    def leaky(part: Part) -> Build:
        return layers(lambda m, x: m.b(torch.tanh(part(m.a(x) + x.sum(1, keepdim=True)))))

    for (name, edit), asked in itertools.product(_EDITS.items(), FEW):
        options = {"edits": (edit,)}
        yield twins("edits", f"a factor beside {name}", asked, leaky, scaled(1.5), options=options)
        yield twins("edits", f"dropout beside {name}", asked, leaky, _dropout(0.5), RANDOM_CAUSE, options=options)


_EDITS: dict[str, ca.Edit] = {
    "Scale 1.0": ca.Scale("a", factor=1.0),
    "Scale 2.0": ca.Scale("a", factor=2.0),
    "Add": ca.Add("a", addend=0.5),
    "Zero of a row": ca.Zero("a", rows=(1,)),
    "Zero": ca.Zero("a"),
    "Clamp": ca.Clamp("a", minimum=-1.0, maximum=1.0),
    "Clamp that changes nothing": ca.Clamp("a", minimum=-1e6),
    "Replace": ca.Replace("a", tensor=noise(3, 16, seed=9).numpy()),
    "Scale at the input": ca.Scale("a", "input", factor=1.0),
}


def _dropout(p: float) -> Part:
    return lambda h: F.dropout(h, p, training=True)


def targets() -> Iterator[Fault]:
    def classes(part: Part) -> Build:
        return layers(lambda m, x: part(m.b(torch.tanh(m.a(x)))))

    wrong = classes(changed(lambda g: g * torch.tensor([1, 1, 0.5]).to(g)))
    first = [(ca.InputXGradient(target=ca.ClassIndex((0,))), VECTOR)]
    for (name, target), asked in itertools.product(_TARGETS.items(), FEW):
        yield Fault(
            ("targets", f"class 2 wrong, {name}"), replace(asked, target=target), wrong, classes(same), before=first
        )
    one = {"x": VECTOR["x"][:1]}
    ranks = classes(same)()(**one)[0].argsort(descending=True).tolist()
    for asked in FEW:
        yield Fault(
            ("targets", "class 2 wrong, among the top 3"), replace(asked, target=ca.TopK(3)), wrong, classes(same),
            inputs=one, before=first, pick=ranks.index(2),
        )  # fmt: skip


_TARGETS: dict[str, ca.Target] = {
    "ClassIndex": ca.ClassIndex((2,)),
    "ClassIndex of one row": ca.ClassIndex((0, 2, 1)),
    "MultiIndex": ca.MultiIndex(((2,),)),
    "Cotangent": ca.Cotangent(np.array([[0.1, 0, 1], [0, 0, 1], [0, 0.2, 1]], np.float32)),
    "CrossEntropy": ca.CrossEntropy((2,)),
    "MeanSquaredError": ca.MeanSquaredError(np.array([[0, 0, 9.0]] * 3, np.float32)),
    "OutputSum": ca.OutputSum(),
    "OutputNorm": ca.OutputNorm(),
}


def completeness() -> Iterator[Fault]:
    for path in (ca.IntegratedGradients(n_steps=32), ca.LayerConductance(layer="a", n_steps=32)):
        yield Fault(("sums", "gradients too large"), path, smooth(scaled(1.5)), SMOOTH, check=1)
    bent = layers(lambda m, x: m.b(torch.tanh(5 * m.a(x))))
    fine = ca.IntegratedGradients(n_steps=512)
    causes = frozenset({Cause.TOO_FEW_STEPS})
    for steps, quadrature in ((1, "gausslegendre"), (2, "gausslegendre"), (2, "riemann_left"), (3, "riemann_right")):
        rough = ca.IntegratedGradients(n_steps=steps, quadrature=ca.Quadrature(quadrature))
        yield Fault(("sums", f"{steps} steps, {quadrature}"), rough, bent, bent, causes, check=1, right=fine)
    for asked in (
        ca.LayerIntegratedGradients(layer="a", n_steps=2),
        ca.LayerConductance(layer="a", n_steps=2),
        ca.NeuronIntegratedGradients(neuron=ca.Neuron("b", (1,)), n_steps=2),
    ):
        yield Fault(("sums", "2 steps"), asked, bent, bent, causes, check=1, right=replace(asked, n_steps=512))


def rectifiers() -> Iterator[Fault]:
    neuron = ca.Neuron("c", (1,))
    vectors = (
        ca.GuidedBackprop(), ca.Deconvolution(), ca.NeuronGuidedBackprop(neuron=neuron),
        ca.NeuronDeconvolution(neuron=neuron), ca.DeepLift(), ca.DeepLiftShap(baselines=SAMPLES),
        ca.LayerDeepLift(layer="a"), ca.LayerDeepLiftShap(layer="a", baselines=SAMPLES),
        ca.NeuronDeepLift(neuron=neuron), ca.NeuronDeepLiftShap(neuron=neuron, baselines=SAMPLES),
    )  # fmt: skip
    for (name, part), asked in itertools.product(RELUS.items(), vectors):
        build, sound = _hidden(_applied(part)), _hidden(_module)
        yield Fault(("a ReLU by another name", name), asked, build, sound, FUNCTIONAL)
    for name, part in RELUS.items():
        build, sound = _seen(_applied(part)), _seen(_module)
        yield Fault(
            ("a ReLU by another name", name), ca.GuidedGradCam(layer="b"), build, sound, FUNCTIONAL, inputs=IMAGE
        )
    for (name, (part, module)), asked in itertools.product(FUNCTIONS.items(), vectors[4:]):
        build, sound = _hidden(_applied(part)), _hidden(_module, r0=module)
        inputs = VECTOR if name.startswith("leaky") else LARGE
        yield Fault(("a function", name), asked, build, sound, FUNCTIONAL, inputs=inputs)
    parts: dict[str, Any] = {"c": LINEAR, "r0": nn.ReLU, "r": nn.ReLU, "d": LINEAR}
    for name, place in _PLACES.items():
        for asked in (ca.GuidedBackprop(), ca.DeepLift(), ca.LayerDeepLift(layer="a")):
            build, sound = (layers(partial(place, each), **parts) for each in (_applied(_clamped), _module))
            yield Fault(("a place of a ReLU", name), asked, build, sound, FUNCTIONAL)


def _clamped(h: Tensor) -> Tensor:
    return h.clamp(min=0)


Wiring = Callable[[Any, Tensor], Any]


def _applied(part: Part) -> Wiring:
    return lambda m, h: part(h)


def _module(m: Any, h: Tensor) -> Any:
    return m.r0(h)


def _hidden(wiring: Wiring, r0: Callable[[], nn.Module] = nn.ReLU) -> Build:
    return layers(lambda m, x: m.b(m.r(m.c(wiring(m, m.a(x))))), c=LINEAR, r0=r0, r=nn.ReLU)


def _seen(wiring: Callable[[Any, Tensor], Tensor]) -> Build:
    return convolutions(lambda m, x: pooled(m, m.r(m.b(wiring(m, m.a(x))))), r0=nn.ReLU, r=nn.ReLU)


def _two_branches(relu: Callable[[Any, Tensor], Tensor], m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    logits: Tensor = m.b(m.r(m.c(h * 1)) + relu(m, m.d(h * 1)))
    return logits


_PLACES: dict[str, Callable[..., Tensor]] = {
    "behind an nn.ReLU": lambda relu, m, x: m.b(relu(m, m.c(m.r(m.a(x))))),
    "between two nn.Linear, later": lambda relu, m, x: m.b(m.r(m.d(relu(m, m.c(m.a(x)))))),
    "on one of two branches": _two_branches,
}


def coupled() -> Iterator[Fault]:
    methods: tuple[Attribution, ...] = (
        ca.InputXGradient(), ca.IntegratedGradients(n_steps=8), ca.GradientShap(baselines=ZEROS, n_samples=4),
        ca.LayerGradientShap(layer="i", baselines=ZEROS, n_samples=4), ca.InternalInfluence(layer="i", n_steps=8),
        ca.LayerConductance(layer="i", n_steps=8), ca.FeatureAblation(), ca.GuidedBackprop(),
        ca.Saliency(absolute=False, noise=ca.NoiseTunnel(n_samples=4, stdev=0.1)),
        ca.NeuronGradient(neuron=ca.Neuron("t", (1,))),
    )  # fmt: skip
    causes = frozenset({Cause.ROWS_COUPLED, Cause.UNKNOWN, Cause.OTHER_PASSES})
    for (name, part), asked in itertools.product(COUPLED.items(), methods):
        yield twins("rows", name, asked, _mixing, part, causes)
    part, one = COUPLED["divided by the batch's largest"], {"x": VECTOR["x"][:1]}
    for asked in methods[1:5]:
        yield twins("rows", "one row, divided by the batch's largest", asked, _mixing, part, causes, inputs=one)
    masked: Callable[[Part], Build] = lambda part: _mixing(part, mask=True)  # noqa: E731
    mean = COUPLED["the batch's mean subtracted"]
    yield twins("rows", "beside a masked logit", ca.InputXGradient(), masked, mean, causes)


def _mixing(part: Part, mask: bool = False) -> Build:
    def wiring(m: Any, x: Tensor) -> Tensor:
        logits: Tensor = m.b(m.r(m.t(part(m.i(m.a(x))))))
        return logits.masked_fill(torch.tensor([False, False, True]), -1e9) if mask else logits

    return layers(wiring, i=LINEAR, t=nn.Tanh, r=nn.ReLU)


def randomness() -> Iterator[Fault]:
    methods: tuple[Attribution, ...] = (
        ca.InputXGradient(), ca.IntegratedGradients(n_steps=8), ca.FeatureAblation(), ca.LayerActivation(layer="b"),
        ca.KernelShap(n_samples=24), ca.NeuronGradient(neuron=ca.Neuron("t", (1,))), ca.DeepLift(),
    )  # fmt: skip
    for (name, draw), asked in itertools.product(DRAWS.items(), methods):
        build, sound, worst = map(_rare, (draw, lambda m: 1.0, lambda m: 0.0))
        yield Fault(("random", f"now and then, {name}"), asked, build, sound, RANDOM_CAUSE, worst=worst)
    for p, asked in itertools.product((0.1, 0.5), (*methods, ca.GradientShap(baselines=ZEROS))):
        yield twins("random", f"dropout {p:g} left on", asked, _tangent, _dropout(p), RANDOM_CAUSE)
    for asked in (*methods[:2], methods[5], methods[6]):
        part: Part = lambda h: F.dropout(h, 0.5, training=torch.is_grad_enabled())  # noqa: E731
        yield twins("random", "dropout in grad mode", asked, _tangent, part, RANDOM_CAUSE)
        part = lambda h: h * (1.3 if torch.is_grad_enabled() else 1)  # noqa: E731
        yield twins("random", "other values in grad mode", asked, _tangent, part, RANDOM_CAUSE)


def _tangent(part: Part) -> Build:
    return layers(lambda m, x: m.b(m.t(part(m.a(x)))), t=nn.Tanh)


def _rare(draw: Callable[[Any], float]) -> Build:
    build = layers(lambda m, x: m.b(m.t(Rarely(partial(draw, m))(m.a(x)))), t=nn.Tanh)
    return lambda: with_generators(build())


def drift() -> Iterator[Fault]:
    methods: tuple[Attribution, ...] = (
        ca.InputXGradient(), ca.IntegratedGradients(n_steps=8), ca.FeatureAblation(), ca.Occlusion(windows={"x": (2,)}),
        ca.ShapleyValueSampling(n_samples=4), ca.KernelShap(n_samples=24), ca.DeepLift(),
        ca.NeuronGradient(neuron=ca.Neuron("t", (1,))), ca.LayerActivation(layer="t"),
    )  # fmt: skip
    causes = frozenset({Cause.RANDOM_FORWARD, Cause.UNKNOWN})
    for first, asked in itertools.product((0, 3, 12, 30), methods):
        build = _built(lambda first=first: _tangent(_Louder(first)))  # type: ignore[misc]
        yield Fault(
            ("drift", f"louder and less loud, from call {first} on"), asked, build, _tangent(same), causes,
            before=[(asked, VECTOR)] * (0 if first < 12 else 16), worst=_tangent(lambda h: 1.3 * h),
        )  # fmt: skip
    for late, asked in itertools.product((2, 3, 4), methods):
        build = _built(lambda: _tangent(_Louder(10**6)))
        if late > 2 and not isinstance(
            asked, (ca.FeatureAblation, ca.Occlusion, ca.ShapleyValueSampling, ca.KernelShap)
        ):
            continue
        yield Fault(
            ("drift", f"louder and less loud, from the {late}. call of a later request on"),
            asked, build, _tangent(same), causes, before=[(asked, VECTOR)], prepare=partial(_begin, late),
            worst=_tangent(lambda h: 1.3 * h),
        )  # fmt: skip
    for calls, asked in itertools.product((20, 40), FEW):
        build = _built(lambda calls=calls: _tangent(_wrong_from(calls)))  # type: ignore[misc]
        yield Fault(
            ("drift", f"gradients wrong from call {calls} on"), asked, build, _tangent(same),
            before=[(asked, VECTOR)] * 31,
        )  # fmt: skip


class _Louder:
    """Scales by other numbers from call to call, from call ``first`` on."""

    def __init__(self, first: int) -> None:
        self.first, self.calls = first, 0

    def __call__(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h * (1 + 0.1 * (1 + 5 * self.calls % 7 if self.calls > self.first else 0))


def _begin(late: int, model: Any) -> None:
    """Lets a model drift from the call number ``late`` on that follows."""
    (part,) = [each.cell_contents for each in model.wiring.__closure__]
    part.first = part.calls + late - 1


def _wrong_from(first: int) -> Part:
    calls = 0

    def pass_on(h: Tensor) -> Any:
        nonlocal calls
        calls += 1
        return scaled(1.5 if calls > first else 1.0)(h)

    return pass_on


def conditions() -> Iterator[Fault]:
    """Faults that show on some inputs only, after a request that was sound."""
    for (name, (is_wrong, healthy, faulty)), asked in itertools.product(_CONDITIONS.items(), FEW):
        if name in _NOT_ON_A_PATH and isinstance(asked, ca.IntegratedGradients):
            continue
        build = layers(lambda m, x, is_wrong=is_wrong: m.b(m.t(scaled(1.5 if is_wrong(x) else 1.0)(m.a(x)))), t=nn.Tanh)
        before = [(asked, healthy), *[(asked, faulty)] * (3 if name.startswith("at last") else 0)]
        yield Fault(("only then", name), asked, build, _tangent(same), before=before, inputs=faulty)
    cells: dict[str, Callable[[], Any]] = {"cell": partial(nn.GRUCell, 4, 8), "head": partial(nn.Linear, 8, 3)}
    sequences = wired(lambda m, x: m.head(_truncated(m.cell, x)), **cells)
    sound = wired(lambda m, x: m.head(_truncated(m.cell, x, 10**6)), **cells)
    for asked in FEW:
        yield Fault(
            ("only then", "a backward pass cut behind nine steps"), asked, sequences, sound,
            before=[(asked, {"x": noise(2, 6, 4)})], inputs={"x": noise(2, 12, 4)},
        )  # fmt: skip


def _truncated(cell: nn.Module, x: Tensor, length: int = 9) -> Tensor:
    state = x.new_zeros(len(x), 8)
    for step in range(x.shape[1]):
        state = cell(x[:, step], state.detach() if step == length else state)
    return state


_POSITIVE = {"x": noise(3, 8).abs()}
_NEGATIVE = {"x": -noise(3, 8).abs()}

_CONDITIONS: dict[str, tuple[Callable[[Tensor], bool], Mapping[str, Tensor], Mapping[str, Tensor]]] = {
    "positive values": (lambda x: float(x.detach().sum()) > 0, _NEGATIVE, _POSITIVE),
    "negative values": (lambda x: float(x.detach().sum()) < 0, _POSITIVE, _NEGATIVE),
    "more than four rows": (lambda x: len(x) > 4, VECTOR, {"x": noise(6, 8)}),
    "more than one row": (lambda x: len(x) > 1, {"x": VECTOR["x"][:1]}, VECTOR),
    "one row": (lambda x: len(x) == 1, VECTOR, {"x": VECTOR["x"][:1]}),
    "large values": (lambda x: float(x.detach().abs().max()) > 9, VECTOR, {"x": 6 * noise(3, 8)}),
    "small values": (lambda x: float(x.detach().abs().max()) < 0.9, VECTOR, {"x": 0.3 * noise(3, 8)}),
    "at last, where nothing was tried before": (lambda x: 111 < float(x.detach().flatten()[0]) < 112, VECTOR,
        {"x": 0.1 * noise(3, 8) + 111.5}),
}  # fmt: skip

_NOT_ON_A_PATH = ("one row", "at last, where nothing was tried before")


# Captum, spoiled.


def captum() -> Iterator[Fault]:
    plain = between(same)
    for asked in (*AT_INPUT, *AT_LAYER, *WITHOUT_GRADIENTS):
        for name, change in _VALUES.items():
            if name == "rows exchanged" and "Deconvolution" in type(asked).__name__:
                continue  # here all rows are equal
            yield _spoiled(asked, name, plain, change)
        if "Deconvolution" in type(asked).__name__:
            continue
        earlier = {"x": noise(3, 8, seed=8) * 1.5}
        old = _spoiled(asked, "the answer to an earlier question", plain)
        yield replace(old, around=partial(stale, _kind(asked)), before=[(asked, earlier)])
    for asked in ON_IMAGES:
        for name, change in _VALUES.items():
            yield replace(_spoiled(asked, name, image(same), change), inputs=IMAGE)
    for asked in (*AT_INPUT[:4], *AT_LAYER[:3], ca.FeatureAblation()):
        yield _spoiled(asked, "another target", plain, arguments=_next_target)
    bent = layers(lambda m, x: m.b(m.t(3 * m.a(x))), t=nn.Tanh)
    for asked in (*FEW[1:], ca.DeepLift(), ca.FeatureAblation(), ca.LayerConductance(layer="a", n_steps=32)):
        yield _spoiled(asked, "another baseline", bent, arguments=_other_baseline)
    for asked in (*FEW[1:], ca.InternalInfluence(layer="a", n_steps=32), ca.LayerConductance(layer="a", n_steps=32)):
        yield _spoiled(asked, "fewer steps", bent, arguments=_fewer_steps)


def _kind(asked: Attribution) -> type[Any]:
    kind: type[Any] = getattr(attr, type(asked).__name__)
    return kind


def _spoiled(asked: Attribution, name: str, build: Build, *change: Any, **options: Any) -> Fault:
    causes = SPOILED | ({Cause.NOT_FINITE} if "number" in name else set())
    causes |= {Cause.NOT_MOVED} if isinstance(asked, ca.Lime) else set()
    return Fault(
        ("Captum", name), asked, build, None, causes, around=partial(spoiled, _kind(asked), *change, **options)
    )


def _at_largest(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def changed_values(values: Tensor) -> Tensor:
        other = values.clone().flatten()
        other[values.abs().argmax()] = change(other[values.abs().argmax()])
        return other.reshape(values.shape)

    return changed_values


def _is_largest_row(values: Tensor) -> Tensor:
    lengths = values.flatten(1).norm(dim=1).reshape(-1, *[1] * (values.ndim - 1))
    return lengths == lengths.max()


_VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda values: values * 1.06,
    "signs changed": lambda values: -values,
    "rows exchanged": lambda values: values.flip(0),
    "features exchanged": lambda values: values.roll(1, -1),
    "one element": _at_largest(lambda value: value * 1.4),
    "one row": lambda values: values * (1 + _is_largest_row(values) / 5),
    "not a number": _at_largest(lambda value: value * float("nan")),
}


def _next_target(method: Any, options: dict[str, Any]) -> None:
    options["target"] = (options["target"] + 1) % 3


def _other_baseline(method: Any, options: dict[str, Any]) -> None:
    options["baselines"] = tuple(each + 0.5 for each in options["baselines"])


def _fewer_steps(method: Any, options: dict[str, Any]) -> None:
    options["n_steps"] = 1


KINDS: tuple[Callable[[], Iterator[Fault]], ...] = (
    wrong_backward, factors, hooks, inputs_of_many, edits, targets, completeness, rectifiers, coupled, randomness,
    drift, conditions, captum, *FAMILY_KINDS,
)  # fmt: skip


def catalogue(words: Sequence[str] = ()) -> list[Fault]:
    """All faults, or those whose kind contains one of ``words``."""
    faults = [fault for kind in KINDS for fault in kind()]
    return [fault for fault in faults if not words or any(word in ": ".join(fault.kind) for word in words)]


def main() -> None:
    """Ask everything; exit with status 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(prog="faults", description="Every fault, by every method it concerns.")
    parser.add_argument("words", nargs="*", help="only kinds with one of these words")
    parser.add_argument("--controls", action="store_true", help="ask the sound twins too")
    parser.add_argument("--complaints", action="store_true", help="print only what is not as it must be")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began, faults = time.monotonic(), catalogue(asked.words)
    complaints: Counter[str] = Counter()
    smallest, checks = float("inf"), 0
    for fault in faults:
        try:
            for found in outcomes(fault):
                checks, smallest = checks + 1, min(smallest, found.effect)
                complaints[found.complaint.partition(" of ")[0]] += 1
                if found.complaint or not asked.complaints:
                    print(found, flush=True)
            if asked.controls and fault.sound is not None and fault.sound_agrees:
                check = right_answer(fault, torch.float32, CheckMode.SAME_PASS).checks[0]
                if check.verdict is not Verdict.AGREES:
                    complaints["a twin doubted"] += 1
                    print(f"{': '.join(fault.kind)} {fault.method}: the sound twin got {check.cause}: {check.reason}")
        except Exception as failure:  # a fault that cannot be asked about is one too
            complaints["raised"] += 1
            print(f"{': '.join(fault.kind)} {fault.method}: {type(failure).__name__}: {failure}"[:300])
    good = complaints.pop("", 0)
    entries = sum(len(fault.dtypes) for fault in faults)
    print(
        f"{entries} entries ({len(faults)} faults of methods, {len(DTYPES)} data types), each in "
        f"{len(CHECKED)} modes: {good} of {checks} found with the right cause, smallest effect {smallest:.1%}, "
        f"{time.monotonic() - began:.0f} s"
    )
    for complaint, count in complaints.items():
        print(f"  {count} {complaint}")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
