"""Faults in the families of healthy models: every family with every kind of fault, products of tables.

A part that is wrong lies behind one module of a healthy model, or in front of another, or Captum is wrong meanwhile.
Models and methods take turns: each kind of fault has another pair of them in each family.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause
from tests.matrix.asking import at_places
from tests.matrix.fault import DTYPES, Fault
from tests.matrix.healthy import HEALTHY
from tests.matrix.healthy_models.model import ROWS, Healthy
from tests.support.broken_captum import spoiled
from tests.support.checked_attributions import Build
from tests.support.wrong_parts import Part, changed


class Place(NamedTuple):
    """A healthy model, and where a wrong part goes.

    Attributes:
        near: the module behind whose output it lies when inputs are explained.
        far: the module in front of which it lies when a layer is; empty where inputs are always explained.
    """

    model: str
    near: str
    far: str


FAMILIES: dict[str, tuple[Place, ...]] = {
    "tables": (Place("table-products", "a", "head"), Place("table-attention", "a", "head"),
        Place("table-gated", "a", "head")),
    "steps first": (Place("steps-first-lstm", "a", "cells"), Place("as-many-steps-as-rows", "a", "cells"),
        Place("steps-first-transformer", "a", "layer")),
    "text": (Place("text-classifier", "b", "b"), Place("text-attention-steps-first", "b", "b")),
    "cells": (Place("lstm-cell", "a", "head"), Place("looped-linear", "from_state", "b"),
        Place("own-recurrent-unit", "candidate", "head")),
    "pairs": (Place("siamese-absolute", "b", "head"), Place("two-towers", "c", ""),
        Place("siamese-images", "a", "head")),
    "triplets": (Place("triplet", "a", "head"), Place("triplet-stacked", "b", "head")),
    "graphs": (Place("graph-dense-flat", "a", "head"), Place("graph-given", "a", "b"),
        Place("graph-messages", "a", "head")),
    "patches": (Place("vit-class-token", "b", "norm"), Place("vit-spelled", "b", "up")),
    "detection": (Place("detector", "a", "scores"), Place("detector-queries", "a", "head"),
        Place("keypoints", "a", "out")),
    "segmentation": (Place("segmentation", "a", "act2"), Place("segmentation-coarse", "a", "out")),
    "functional": (Place("vmap-rows", "a", "b"), Place("functional-call", "a", "inner.last"),
        Place("hypernetwork", "c", "b")),
    "computed weights": (Place("weight-norm-by-hooks", "a", "act2"), Place("symmetric", "c", "b"),
        Place("orthogonal", "a", "head")),
    "few bits": (Place("fake-quantised", "", ""),),
    "autocast": (Place("autocast-in-part", "a", "c"), Place("autocast-attention", "a", "norm")),
    "structures": (Place("named-tuple", "a", "head"), Place("nested-dictionary", "b", "head"),
        Place("data-class", "a", "head")),
    "experts": (Place("experts-of-tokens-stacked", "router", "b"), Place("experts-of-slots", "two", "b")),
    "complex": (Place("complex-layers", "c", "b"), Place("fourier-operator", "a", "c")),
    "functions": (Place("function-of-two", "c", "b"), Place("function-in-list", "a", "b")),
}  # fmt: skip


NEGLIGIBLE = {
    ("a step dropped", "steps-first-transformer"), ("of the call before", "text-classifier"),
    ("too few steps", "graph-messages"), ("too few steps", "segmentation-coarse"),
}  # fmt: skip
"""Faults that change less than 5 %, and the models."""


# Wrong parts.

BACKWARD = frozenset({Cause.WRONG_BACKWARD})
OF_OTHER_PASSES = BACKWARD | {Cause.UNKNOWN}
"""Where it also matters which rows, or which passes, are together."""


def _same(h: Tensor) -> Tensor:
    return h


class Wrong(NamedTuple):
    """A part that is wrong.

    Attributes:
        make: makes one.
        twin: the same without the fault.
        causes: those that are right.
        by_row: whether it mixes rows; then it lies where rows are the first axis, and inputs are explained.
        remembers: whether it is right until it has seen something else.
    """

    make: Callable[[], Part]
    twin: Part = _same
    causes: frozenset[Cause] = BACKWARD
    by_row: bool = False
    remembers: bool = False


def _along(g: Tensor) -> int:
    """The axis of steps, nodes, tokens or channels; of units where there is no other."""
    return min(1, g.ndim - 1)


def _largest_is(factor: float) -> Part:
    """The largest slice along that axis, times ``factor``."""

    def change(g: Tensor) -> Tensor:
        sizes = g.abs().movedim(_along(g), 0).flatten(1).sum(1)
        factors = torch.where(sizes == sizes.max(), factor, 1.0).to(g)
        return g * factors.reshape(-1, *[1] * (g.ndim - 1 - _along(g)))

    return change


def _coarsely(values: Tensor) -> Tensor:
    step = values.abs().max().clamp(min=1e-30) * 0.8
    return (values / step).round() * step


class _Late:
    """The gradient of the call before that had the same shape."""

    def __init__(self) -> None:
        self.kept: dict[torch.Size, Tensor] = {}

    def __call__(self, g: Tensor) -> Tensor:
        late = self.kept.get(g.shape, g)
        self.kept[g.shape] = g
        return late


class _Added(_Late):
    """The gradient beside that of the call before, as of one who forgets to clear it."""

    def __call__(self, g: Tensor) -> Tensor:
        return g + super().__call__(g)


GRADIENTS: dict[str, Part] = {
    "a scale": lambda g: g * 2,
    "another sign at one place": _largest_is(-1),
    "a step dropped": _largest_is(0),
    "shifted by a step": lambda g: g.roll(1, _along(g)),
    "signs lost": torch.abs,
    "rounded": _coarsely,
}
GRADIENTS_BY_ROW: dict[str, Part] = {
    "axes transposed": lambda g: g.transpose(_along(g), -1 if g.ndim > 2 else 0).reshape(g.shape),
    "another row's": lambda g: g[:1].expand_as(g),
    "rows permuted": lambda g: g.roll(1, 0),
    "the mean over rows": lambda g: g.mean(0, keepdim=True).expand_as(g),
}
GRADIENTS_KEPT: dict[str, Callable[[], Part]] = {
    "of the call before": _Late,
    "added to that of the call before": _Added,
}
"""What a backward pass makes of a right gradient."""


def _remembering(make: Callable[[], Part]) -> Part:
    return changed(make())


class _Pretending(torch.autograd.Function):
    """The values of one function, and the derivative of another."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, values: Part, pretended: Part) -> Tensor:
        ctx.save_for_backward(h)
        ctx.pretended = pretended
        found: Tensor = values(h)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        with torch.enable_grad():
            (h,) = (each.detach().requires_grad_() for each in ctx.saved_tensors)
            (found,) = torch.autograd.grad(ctx.pretended(h), h, gradients[0])
        return found, None, None


def _pretending(values: Part, pretended: Part) -> Part:
    return lambda h: _Pretending.apply(h, values, pretended)


def _normed(h: Tensor) -> Tensor:
    return 3 * h / h.norm(dim=-1, keepdim=True)


def _softmax_by_diagonal(h: Tensor) -> Tensor:
    """The softmax, as if each share depended on its own number only."""
    return 4 * (torch.logit(h.softmax(-1).detach()) + h - h.detach()).sigmoid()


FUNCTIONS: dict[str, tuple[Part, Part]] = {
    "a derivative at another point": (torch.tanh, lambda h: torch.tanh(h + 1)),
    "a skip lost": (lambda h: h + torch.tanh(h), torch.tanh),
    "a branch lost": (lambda h: h + torch.tanh(h), lambda h: h * 1.0),
    "an inner derivative lost": (lambda h: torch.sin(2 * h), lambda h: torch.sin(2 * h) / 2),
    "a mean taken for constant": (lambda h: h - h.mean(-1, keepdim=True), lambda h: h * 1.0),
    "a norm taken for constant": (_normed, lambda h: 3 * h / h.norm(dim=-1, keepdim=True).detach()),
    "a softmax by its diagonal": (lambda h: 4 * h.softmax(-1), _softmax_by_diagonal),
}
"""Functions, and others whose derivative they pretend to have."""


class _Carrying:
    """Keeps a mean of what it saw, and makes what it sees next larger by it."""

    def __init__(self) -> None:
        self.mean: Any = 0.0

    def __call__(self, h: Tensor) -> Tensor:
        mean, self.mean = self.mean, self.mean / 2 + 3 * h.detach().abs().mean() / 2
        return h * (1 + mean)


COUPLED = frozenset({Cause.ROWS_COUPLED, Cause.UNKNOWN, Cause.OTHER_PASSES})
RANDOM = frozenset({Cause.RANDOM_FORWARD})

PASSES: dict[str, Wrong] = {
    "the row before added": Wrong(lambda: lambda h: h + 0.7 * h.roll(1, 0), causes=COUPLED, by_row=True),
    "the batch's mean subtracted": Wrong(lambda: lambda h: h - h.mean(0, keepdim=True), causes=COUPLED, by_row=True),
    "dropout left on": Wrong(lambda: lambda h: F.dropout(h, 0.5, training=True), causes=RANDOM),
    "a state carried on": Wrong(_Carrying, causes=RANDOM, remembers=True),
}
"""Parts that are no function of a row."""

PARTS: dict[str, dict[str, Wrong]] = {
    "gradient": {
        **{name: Wrong(partial(changed, change)) for name, change in GRADIENTS.items()},
        **{name: Wrong(partial(changed, change), causes=OF_OTHER_PASSES, by_row=True)
            for name, change in GRADIENTS_BY_ROW.items()},
        **{name: Wrong(partial(_remembering, make), causes=OF_OTHER_PASSES, remembers=True)
            for name, make in GRADIENTS_KEPT.items()},
    },
    "function": {name: Wrong(partial(_pretending, *both), both[0]) for name, both in FUNCTIONS.items()},
    "forward": PASSES,
}  # fmt: skip


# Captum.


def _with_first(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda values: change(values.detach().clone())


def _largest_element(factor: float) -> Callable[[Tensor], Tensor]:
    def change(values: Tensor) -> Tensor:
        place = values.abs().argmax()
        values.view(-1)[place] *= factor
        return values

    return _with_first(change)


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "a scale": lambda v: v * 1.1,
    "another sign at one place": _largest_element(-1),
    "one place lost": _largest_element(0),
    "a step dropped": _largest_is(0),
    "another row's": lambda v: v[:1].expand_as(v).clone(),
    "rows permuted": lambda v: v.roll(1, 0),
    "the mean over rows": lambda v: v.mean(0, keepdim=True).expand_as(v).clone(),
    "axes transposed": lambda v: v.transpose(_along(v), -1 if v.ndim > 2 else 0).reshape(v.shape),
    "shifted by a step": lambda v: v.flatten(1).roll(1, 1).reshape(v.shape),
    "rounded": _coarsely,
}
"""What becomes of Captum's answer."""


def _two_steps(method: Any, options: dict[str, Any]) -> None:
    options |= {"n_steps": 2, "method": "riemann_left"}


def _trapezoids(method: Any, options: dict[str, Any]) -> None:
    options |= {"n_steps": 4, "method": "riemann_trapezoid"}


def _other_baseline(method: Any, options: dict[str, Any]) -> None:
    options["baselines"] = tuple(each + 2 for each in options["baselines"])


def _next_row_target(method: Any, options: dict[str, Any]) -> None:
    options["target"] = torch.as_tensor(options["target"]).roll(1, 0) + 1


def _one_sample(method: Any, options: dict[str, Any]) -> None:
    options["n_samples"] = 1


def _other_mask(method: Any, options: dict[str, Any]) -> None:
    options["feature_mask"] = tuple(torch.cat([each[..., 1:2], each[..., 1:]], -1) for each in options["feature_mask"])


PATHS = (ca.LayerConductance, ca.IntegratedGradients, ca.InternalInfluence, ca.LayerIntegratedGradients)


class Misled(NamedTuple):
    """Arguments of ``spoiled``, and the methods that they concern."""

    arguments: Mapping[str, Any]
    methods: tuple[type[Attribution], ...]


MISLED: dict[str, Misled] = {
    "too few steps": Misled({"arguments": _two_steps}, PATHS),
    "wrong weights": Misled({"arguments": _trapezoids}, PATHS[1:]),
    "another baseline": Misled({"arguments": _other_baseline}, PATHS),
    "inputs of another row": Misled({"inputs": lambda x: x.flip(0)}, (ca.InputXGradient, ca.LayerGradientXActivation,
        ca.IntegratedGradients)),
    "inputs nearby": Misled({"inputs": lambda x: x + 0.5 if x.is_floating_point() else (x + 1) % 5}, (ca.InputXGradient,
        ca.LayerGradientXActivation, ca.IntegratedGradients, ca.FeatureAblation)),
    "too few samples": Misled({"arguments": _one_sample}, (ca.GradientShap, ca.ShapleyValueSampling)),
    "another mask": Misled({"arguments": _other_mask}, (ca.FeatureAblation, ca.ShapleyValues, ca.FeaturePermutation)),
}  # fmt: skip
"""What Captum is given instead, or gives instead."""


# The methods.


AT_INPUT = (ca.Saliency, ca.InputXGradient, ca.IntegratedGradients, ca.GradientShap)
AT_LAYER = (
    *(ca.LayerGradientXActivation, ca.LayerConductance, ca.LayerIntegratedGradients, ca.InternalInfluence),
    *(ca.LayerGradientShap, ca.LayerGradCam),
)
OTHERS = (ca.LayerActivation, ca.LayerFeatureAblation, ca.FeatureAblation, ca.ShapleyValues, ca.Occlusion)


@cache
def _healthy(name: str) -> Healthy:
    """Untrained, so that it is the same on every machine."""
    (found,) = (each for each in HEALTHY if each.name == name)
    return replace(found, loss=None)


@cache
def _target(name: str) -> ca.Target:
    """A class of its own for each row, where there are classes: for one class of all rows, gradients may be equal."""
    healthy = _healthy(name)
    output = healthy.read(healthy.build()(*healthy.examples().values()))
    if not isinstance(healthy.target, ca.PredictedClass) or output.ndim == 1:
        return healthy.target
    return ca.ClassIndex(tuple(range(ROWS)), output=healthy.target.output)


@cache
def _methods(name: str, kinds: tuple[type[Attribution], ...]) -> tuple[Attribution, ...]:
    """Those of ``kinds`` that apply to a model, once each, in their order; at an embedding where possible."""
    healthy = _healthy(name)
    inputs, fit = healthy.examples(), dict[type[Attribution], Attribution]()
    for each in at_places(healthy.places, inputs):
        by_maps = isinstance(each, ca.LayerGradCam) and not (len(inputs) == 1 and next(iter(inputs.values())).ndim == 4)
        at_words = healthy.places.embedding and getattr(each, "layer", "") == healthy.places.embedding
        if (
            type(each).__name__ in healthy.lacks
            or each.noise is not None
            or by_maps
            or (type(each) in fit and not at_words)
        ):
            continue
        fit[type(each)] = replace(each, absolute=False) if isinstance(each, ca.Saliency) else each
    return tuple(replace(fit[kind], target=_target(name)) for kind in kinds if kind in fit)


T = TypeVar("T")


def _turn(number: int, choices: Sequence[T]) -> T:
    return choices[number % len(choices)]


def _followed(place: Place, make: Callable[[], Part], *, far: bool) -> Build:
    """A healthy model with a part behind a module, or in front of one."""

    def build() -> nn.Module:
        model, part = _healthy(place.model).build(), make()
        module: Any = model.get_submodule(place.far if far else place.near)
        forward = module.forward
        if far:
            module.forward = lambda first, *rest: forward(part(first), *rest)
        else:
            module.forward = lambda *given: part(forward(*given))
        return model

    return build


def _products(names: Mapping[str, T]) -> Iterator[tuple[int, str, Place, str, T]]:
    """A third of all pairs of a family and a kind: each kind in a third of the families, and the other way about.

    With them come a number, and the model whose turn it is.
    """
    pairs = itertools.product(enumerate(names.items()), enumerate(FAMILIES.items()))
    for (kind, (name, each)), (number, (family, places)) in pairs:
        if (kind + number) % 3 == 0:
            yield kind + number // 3, family, _turn(kind + number // 3, places), name, each


def _coarse(family: str) -> set[Cause]:
    """In bfloat16, rounding may be as large as a fault."""
    return {Cause.CANCELLATION} if family == "autocast" else set()


def _dtypes(family: str) -> tuple[torch.dtype, ...]:
    """Autocast and PyTorch's fake quantisation are for float32."""
    return DTYPES[:1] if family in ("autocast", "few bits") else DTYPES


def wrong_parts() -> Iterator[Fault]:
    """Models with a part that is wrong, seen by the method whose turn it is."""
    for group, parts in PARTS.items():
        for number, family, place, what, wrong in _products(parts):
            at_input, at_layer = _methods(place.model, AT_INPUT), _methods(place.model, AT_LAYER)
            far = bool(place.far) and not (at_input and (wrong.by_row or wrong.remembers or number % 2))
            if (what, place.model) in NEGLIGIBLE or not (place.near or far):
                continue
            asked = _turn(number // 2, at_layer if far else at_input)
            examples = _healthy(place.model).examples()
            faulty, sound = (_followed(place, make, far=far) for make in (wrong.make, lambda twin=wrong.twin: twin))
            before = [(asked, _healthy(place.model).examples(1))] if wrong.remembers else []
            yield Fault(
                (f"{family}, {group}", f"{what}, in {place.model}"), asked, faulty, sound,
                wrong.causes | _coarse(family), examples, before=before, dtypes=_dtypes(family),
            )  # fmt: skip


SPOILED = frozenset({Cause.UNKNOWN, Cause.OTHER_PASSES})


def wrong_answers() -> Iterator[Fault]:
    """Captum's answers, changed."""
    for number, family, place, what, change in _products(VALUES):
        asked = _turn(number, _methods(place.model, (*AT_INPUT, *AT_LAYER, *OTHERS)))
        yield _misled(family, place, what, asked, values=change)


def wrong_questions() -> Iterator[Fault]:
    """Captum led to answer another question."""
    for number, family, place, what, (arguments, kinds) in _products(MISLED):
        methods = _methods(place.model, kinds)
        if methods and (what, place.model) not in NEGLIGIBLE:
            yield _misled(family, place, what, _turn(number, methods), **arguments)


def exchanged_inputs() -> Iterator[Fault]:
    """One input is given the values of another of its shape."""
    for family in ("pairs", "triplets"):
        for place in FAMILIES[family]:
            for asked in _methods(place.model, AT_INPUT):
                yield _misled(family, place, "another input's", asked, together=lambda found: found[1:] + found[:1])


def _misled(family: str, place: Place, what: str, asked: Attribution, **wrong: Any) -> Fault:
    healthy = _healthy(place.model)
    return Fault(
        (f"{family}, Captum", f"{what}, of {place.model}"), asked, healthy.build, None,
        SPOILED | _coarse(family), healthy.examples(), around=partial(spoiled, type(asked), **wrong),
        dtypes=_dtypes(family),
    )  # fmt: skip


FAMILY_KINDS = (wrong_parts, wrong_answers, wrong_questions, exchanged_inputs)
