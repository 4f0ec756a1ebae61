"""What makes explanations of a model doubtful is found out wherever it hides, and doubts only what it concerns."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import AttributionResult, Cause, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import CHECKED, noise, wired
from tests.support.faults import IMAGE, convolutions, layers, pooled
from tests.support.wrong_parts import (
    COUPLED,
    CUT,
    DRAWS,
    RELUS,
    Rarely,
    ScaledBothWays,
    both_doubled,
    changed,
    scaled,
    with_generators,
)

X = {"x": noise(3, 8)}
ZEROS = {"x": np.zeros((2, 8), np.float32)}


class Served:
    """A model that is asked several times, as a server is."""

    def __init__(self, model: nn.Module) -> None:
        self._subject = InspectedModel(model, lambda tensors: model(**tensors))

    def ask(
        self, *asked: Attribution, inputs: dict[str, Tensor] = X, mode: CheckMode = CheckMode.SAME_PASS, **more: Any
    ) -> tuple[AttributionResult, ...]:
        request = ca.InspectRequest("m", attributions=asked, check=CheckRequest(mode), **more)
        return inspect(self._subject, request, dict(inputs)).attributions


def outcome(result: AttributionResult) -> tuple[Verdict, Cause | None]:
    """Of the comparison with raw hooks."""
    return result.checks[0].verdict, result.checks[0].cause


AGREES = (Verdict.AGREES, None)
WRONG = (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)
RANDOM = (Verdict.INCONCLUSIVE, Cause.RANDOM_FORWARD)
COUPLED_ROWS = (Verdict.INCONCLUSIVE, Cause.ROWS_COUPLED)


reversed_ = changed(torch.neg)


def halved_for_class_2(gradient: Tensor) -> Tensor:
    return gradient * torch.tensor([1.0, 1.0, 0.5])


@pytest.mark.parametrize("mode", CHECKED)
def test_every_explained_input_is_looked_at(mode: CheckMode) -> None:
    """The gradient of the second input is reversed: what explains it is doubted, and the first input alone is not."""
    build = layers(lambda m, x, y: m.b(torch.tanh(m.a(x) + m.c(reversed_(y)))), c=lambda: nn.Linear(8, 16))
    inputs = {**X, "y": noise(3, 8, seed=2)}
    both, first = Served(build()).ask(ca.InputXGradient(), ca.InputXGradient(inputs=("x",)), inputs=inputs, mode=mode)
    assert (outcome(both), outcome(first)) == (WRONG, AGREES)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "edit",
    [
        *(ca.Scale("a", factor=1.0), ca.Add("a", addend=0.5), ca.Zero("a", rows=(1,))),
        ca.Replace("a", tensor=noise(3, 16, seed=9).numpy()),
    ],
    ids=lambda edit: type(edit).__name__,
)
def test_an_edit_ends_no_doubt(edit: ca.Edit, mode: CheckMode) -> None:
    """An edited model is looked at as it is then."""
    wrong = layers(lambda m, x: m.b(torch.tanh(reversed_(m.a(x) + x.sum(1, keepdim=True)))))
    dropping = layers(lambda m, x: m.b(F.dropout(m.a(x) + x.sum(1, keepdim=True), 0.5, training=True)))
    right = layers(lambda m, x: m.b(torch.tanh(m.a(x) + x.sum(1, keepdim=True))))
    found = [outcome(Served(build()).ask(ca.Saliency(), edits=(edit,), mode=mode)[0]) for build in (wrong, dropping)]
    assert found == [WRONG, RANDOM]
    path = ca.IntegratedGradients(n_steps=8)
    assert outcome(Served(dropping()).ask(path, edits=(edit,), mode=mode)[0]) == RANDOM
    assert outcome(Served(right()).ask(ca.Saliency(), edits=(edit,), mode=mode)[0]) == AGREES


def test_each_target_has_its_own_doubt() -> None:
    """The gradient of class 2 is wrong, whichever class was asked for first, and in one request for all."""
    served = Served(layers(lambda m, x: changed(halved_for_class_2)(m.b(torch.tanh(m.a(x)))))())
    for index, expected in ((0, AGREES), (2, WRONG), (1, AGREES)):
        assert outcome(served.ask(ca.Saliency(), target=ca.ClassIndex((index,)))[0]) == expected
    one_row = {"x": X["x"][:1]}
    results = served.ask(ca.Saliency(), inputs=one_row, target=ca.TopK(3))
    assert {int(each.targets[0]): outcome(each) for each in results if each.targets is not None} == {
        0: AGREES, 1: AGREES, 2: WRONG,
    }  # fmt: skip


def test_a_gradient_that_scatters_is_no_rounding() -> None:
    """The same pass again has another gradient: that is wrong, and no cancellation."""
    scattered = changed(lambda gradient: gradient * (1 + torch.randn_like(gradient) / 2))
    noisy = layers(lambda m, x: m.b(torch.tanh(scattered(m.a(x)))))
    assert outcome(Served(noisy()).ask(ca.InputXGradient())[0]) == WRONG


def test_a_layer_behind_the_fault_is_not_doubted() -> None:
    """The gradient that arrives at a layer is right whatever happens to it on its way to the input."""
    build = layers(lambda m, x: m.b(torch.tanh(m.c(reversed_(m.a(x))))), c=lambda: nn.Linear(16, 16))
    before, behind = Served(build()).ask(ca.LayerGradientXActivation(layer="a"), ca.LayerGradientXActivation(layer="c"))
    assert (outcome(before), outcome(behind)) == (WRONG, AGREES)


OVERRIDING = pytest.mark.parametrize(
    "asked", [ca.GuidedBackprop(), ca.Deconvolution(), ca.DeepLift()], ids=lambda a: type(a).__name__
)
BEFORE_IT: dict[str, Callable[[], Any]] = {"c": lambda: nn.Linear(16, 16), "r": nn.ReLU}


@pytest.mark.parametrize("mode", CHECKED)
@OVERRIDING
@pytest.mark.parametrize("name", list(RELUS))
def test_a_relu_by_any_other_name(name: str, asked: Attribution, mode: CheckMode) -> None:
    """Captum overrides ``nn.ReLU`` modules: a rectifier that is none is found by what it does to values."""
    hidden = layers(lambda m, x: m.b(m.r(m.c(RELUS[name](m.a(x))))), **BEFORE_IT)
    verdict, cause = outcome(Served(hidden()).ask(asked, mode=mode)[0])
    assert verdict is not Verdict.AGREES
    assert cause is Cause.FUNCTIONAL_NONLINEARITY


@OVERRIDING
def test_a_relu_by_its_own_name_is_none_of_them(asked: Attribution) -> None:
    plain = layers(lambda m, x: m.b(m.r2(m.c(m.r(m.a(x))))), **BEFORE_IT, r2=nn.ReLU)
    for mode in CHECKED:
        assert outcome(Served(plain()).ask(asked, mode=mode)[0]) == AGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "asked",
    [
        ca.GradientShap(baselines=ZEROS),
        ca.LayerGradientShap(layer="a", baselines=ZEROS),
        ca.InternalInfluence(layer="a"),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_model_that_depends_on_the_number_of_rows(asked: Attribution, rows: int, mode: CheckMode) -> None:
    """Captum runs several points in one batch: a model that divides by the batch's size is wrong there."""
    build = layers(lambda m, x: m.b(torch.tanh(m.a(x))) / len(x))
    verdict, cause = outcome(Served(build()).ask(asked, inputs={"x": X["x"][:rows]}, mode=mode, seed=1)[0])
    assert verdict is not Verdict.AGREES
    assert cause in (Cause.ROWS_COUPLED, Cause.UNKNOWN, Cause.OTHER_PASSES)


RARELY: dict[str, Callable[[], bool]] = {
    "torch": lambda: bool(torch.rand(()) < 0.05),
    "numpy": lambda: bool(np.random.rand() < 0.05),
    "random": lambda: random.random() < 0.05,
}


@pytest.mark.parametrize("draw", list(RARELY))
def test_what_is_random_now_and_then(draw: str) -> None:
    """Stochastic depth that strikes rarely moves a generator always; who seeds his own numbers is not random."""
    rare = layers(lambda m, x: m.b(torch.tanh(m.a(x) * (0 if RARELY[draw]() else 1))))
    for _ in range(4):
        assert outcome(Served(rare()).ask(ca.Saliency())[0]) == RANDOM

    def seeded(m: Any, x: Tensor) -> Tensor:
        noise = torch.randn(16, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        return m.b(torch.tanh(m.a(x) + noise + torch.randn(16)))

    with torch.random.fork_rng():
        assert outcome(Served(layers(seeded)()).ask(ca.Saliency())[0]) == AGREES


@pytest.fixture
def louder() -> Served:
    """A model that is 5 % louder with every call, from the twelfth on."""
    calls = 0

    def drifting(m: Any, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return m.b(torch.tanh(m.a(x))) * 1.05 ** max(0, calls - 12)

    return Served(layers(drifting)())


@pytest.mark.parametrize("asked", [ca.Saliency(), ca.IntegratedGradients(n_steps=4)], ids=lambda a: type(a).__name__)
def test_a_model_that_changes_from_call_to_call(louder: Served, asked: Attribution) -> None:
    """A later pass on the same input is compared with the first."""
    for _ in range(8):
        last = louder.ask(asked)[0]
    assert last.checks[0].verdict is not Verdict.AGREES
    assert last.checks[0].cause is Cause.RANDOM_FORWARD


def test_a_global_hook_that_comes_later() -> None:
    """A hook of all modules that quarters gradients is seen, although the model was looked at before; so is its end."""
    served = Served(layers(lambda m, x: m.b(torch.tanh(m.a(x))))())

    def quarter(module: nn.Module, into: Any, out: Any) -> Any:
        return tuple(each / 4 for each in into) if isinstance(module, nn.Linear) and None not in into else None

    assert outcome(served.ask(ca.Saliency())[0]) == AGREES
    handle = nn.modules.module.register_module_full_backward_hook(quarter)
    try:
        assert outcome(served.ask(ca.Saliency())[0]) == WRONG
    finally:
        handle.remove()
    assert outcome(served.ask(ca.Saliency())[0]) == AGREES


def test_a_path_that_misses_a_part_of_a_small_change() -> None:
    """What is missing is compared with the target's change, and not with attributions that nearly cancel."""
    build = wired(lambda m, x: torch.tanh(6 * x[:, :1]) - 0.99 * x[:, 1:], a=nn.Identity)
    ones = {"x": torch.ones(1, 2)}
    coarse, fine = (
        Served(build()).ask(ca.IntegratedGradients(n_steps=steps), inputs=ones)[0].checks[1] for steps in (4, 200)
    )
    assert (coarse.verdict, coarse.cause) == (Verdict.INCONCLUSIVE, Cause.TOO_FEW_STEPS)
    assert fine.verdict is Verdict.AGREES


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_data_type_of_operators_counts(dtype: torch.dtype) -> None:
    """Under autocast parameters and results are float32: the tolerance is that of what is computed between them."""

    def mixed(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            h = m.r(m.a(x))
            return m.b(h).float()

    for asked in (ca.DeepLift(), ca.Saliency(), ca.InputXGradient()):
        assert outcome(Served(layers(mixed, r=nn.ReLU)()).ask(asked)[0]) == AGREES


@pytest.mark.parametrize(
    ("dtype", "factor", "expected"),
    [
        (torch.float32, 1 + 2**-6, COUPLED_ROWS),
        (torch.bfloat16, 1 + 2**-6, AGREES),
        (torch.bfloat16, 1.5, COUPLED_ROWS),
    ],
)
def test_a_kernel_for_more_rows_rounds_as_its_data_type_does(
    dtype: torch.dtype, factor: float, expected: tuple[Verdict, Cause | None]
) -> None:
    """Another kernel for more rows differs by few roundings of the type that the model computes in, also where its
    results are cast to a finer one. A change by a half is none."""

    def cast(m: Any, x: Tensor) -> Tensor:
        h = m.b(torch.tanh(m.a(x))).to(dtype)
        return (h * (factor if len(x) > 3 else 1.0)).float()

    assert outcome(Served(layers(cast)()).ask(ca.IntegratedGradients(n_steps=64))[0]) == expected


@pytest.mark.parametrize("asked", [ca.GuidedBackprop(), ca.Deconvolution(), ca.GuidedGradCam(layer="a")])
def test_the_relus_of_earlier_inputs_are_not_taken_for_those_of_these(asked: Attribution) -> None:
    """A model that chooses its ReLU by the input is asked in turn: what Captum does not override is found each time."""

    def choosing(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return pooled(m, F.relu(h) if bool(x.sum() > 0) else m.r(h))

    served = Served(convolutions(choosing, r=nn.ReLU)())
    functional = {"x": IMAGE["x"].abs()}
    for inputs, found in [(functional, Cause.FUNCTIONAL_NONLINEARITY), ({"x": -functional["x"]}, None)] * 2:
        verdict, cause = outcome(served.ask(asked, inputs=inputs)[0])
        assert (verdict is Verdict.AGREES, cause) == (found is None, found)


def test_a_path_that_is_flat_at_its_end_is_not_saturated() -> None:
    """The target stops to change before the input is reached: what it changed by on the way is explained."""
    model = layers(lambda m, x: torch.tanh(20 * m.b(torch.tanh(m.a(x)))))()
    path = ca.IntegratedGradients(n_steps=256, quadrature=ca.Quadrature.RIEMANN_RIGHT)
    inputs = {"x": 4 * X["x"]}
    at_input = inputs["x"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(at_input)[:, 0].sum(), at_input)
    assert not bool(gradient[0].any())
    (result,) = Served(model).ask(path, inputs=inputs, mode=CheckMode.INDEPENDENT)
    assert outcome(result) == AGREES


def test_a_row_without_gradient_is_told_from_a_saturated_one() -> None:
    """Where ReLUs let nothing through there is no softmax to look before."""
    build = wired(lambda m, x: torch.relu(x).sum(1, keepdim=True), a=nn.Identity)
    inputs = {"x": torch.tensor([[1.0, 2.0], [-1.0, -2.0], [3.0, -1.0]])}
    check = Served(build()).ask(ca.Saliency(), inputs=inputs)[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.NO_GRADIENT)
    assert "in row 1:" in check.reason
    assert "softmax" not in check.reason


def test_steps_that_do_not_help_are_named() -> None:
    """A step on the path needs more than was tried: the reason says what was tried, and not that nothing helps."""
    build = wired(lambda m, x: torch.sigmoid(2000 * (x - 0.37)).sum(1, keepdim=True), a=nn.Identity)
    check = Served(build()).ask(ca.IntegratedGradients(n_steps=8), inputs={"x": torch.ones(1, 1)})[0].checks[1]
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "more steps do not help" not in check.reason
    assert "steps" in check.reason


class OnlyFloat32(torch.autograd.Function):
    """A sine that refuses float64, and its derivative times a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("only float32")
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos() * ctx.factor, None


@pytest.mark.parametrize(("factor", "expected"), [(1.0, AGREES), (1.02, WRONG)])
def test_a_function_of_one_data_type(factor: float, expected: tuple[Verdict, Cause | None]) -> None:
    """Two percent are found where differences in float64 cannot be had, from the function's own operators."""
    build = layers(lambda m, x: m.b(OnlyFloat32.apply(m.a(x), factor)))
    assert outcome(Served(build()).ask(ca.Saliency())[0]) == expected


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", [ca.LayerDeepLift(layer="a"), ca.DeepLift(), ca.LayerConductance(layer="a")],
                         ids=lambda each: type(each).__name__)  # fmt: skip
def test_a_target_that_is_constant_up_to_rounding(asked: Attribution, mode: CheckMode) -> None:
    """What is centred sums to zero: what explains the sum is rounding, whatever rule was overridden where."""
    build = layers(lambda m, x: m.b(m.r(m.a(x))) @ (torch.eye(3) - 1 / 3), r=nn.ReLU)
    check = Served(build()).ask(asked, mode=mode, target=ca.OutputSum())[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.CANCELLATION)
    assert outcome(Served(build()).ask(asked, mode=mode, target=ca.ClassIndex((1,)))[0]) == AGREES


@pytest.mark.parametrize("seed", range(6))
def test_draws_that_hardly_tell_features_apart(seed: int) -> None:
    """Captum fits in float32: its error grows with the conditioning of the draws, and so does what is allowed, up to
    two percent."""
    build = wired(lambda m, x: m.b(torch.relu(m.a(x))), a=lambda: nn.Linear(30, 32), b=lambda: nn.Linear(32, 3))
    inputs = {"x": noise(1, 30, seed=seed)}
    check = Served(build()).ask(ca.KernelShap(n_samples=50), inputs=inputs, seed=seed)[0].checks[0]
    assert check.verdict is Verdict.AGREES, check
    assert 1e-3 < check.tolerance <= 0.02


# What the matrix of faults found (`tests.matrix.faults`).


@pytest.mark.parametrize(("factor", "expected"), [(1.0, AGREES), (1.05, WRONG)])
def test_a_jvp_as_wrong_as_its_backward(factor: float, expected: tuple[Verdict, Cause | None]) -> None:
    """What an author says of a derivative is not asked twice: the function's own values decide."""
    build = layers(lambda m, x: m.b(torch.tanh(ScaledBothWays.apply(m.a(x), factor))))
    assert outcome(Served(build()).ask(ca.Saliency())[0]) == expected


@pytest.mark.parametrize("name", list(CUT))
def test_a_branch_whose_gradient_is_lost(name: str) -> None:
    """However a tensor leaves the graph, its values still change with the input."""
    cut, whole = (
        layers(lambda m, x, part=part: m.b(torch.tanh(m.a(x)) + part(m.c(x))), c=lambda: nn.Linear(8, 16))
        for part in (CUT[name], lambda h: h)
    )
    assert outcome(Served(cut()).ask(ca.InputXGradient())[0]) == WRONG
    assert outcome(Served(whole()).ask(ca.InputXGradient())[0]) == AGREES


def test_a_number_read_for_a_decision_is_no_fault() -> None:
    """A forward may look at numbers: what it then computes has the right gradient."""
    build = layers(lambda m, x: m.b(torch.tanh(m.a(x)) if x.abs().max().item() > 0.1 else m.a(x)))
    assert outcome(Served(build()).ask(ca.Saliency())[0]) == AGREES


def test_a_gradient_that_is_wrong_for_all_inputs_at_once() -> None:
    """Each input alone has the right gradient: Captum asks for all of them."""
    inputs = {**X, "y": noise(3, 8, seed=2)}
    for add, expected in ((both_doubled, WRONG), (torch.add, AGREES)):
        build = layers(lambda m, x, y, add=add: m.b(torch.tanh(m.a(add(x, y)))))
        assert outcome(Served(build()).ask(ca.InputXGradient(), inputs=inputs)[0]) == expected


MASKED = (-1e4, -1e9, float("-inf"))


@pytest.mark.parametrize("mask", MASKED)
def test_a_masked_logit_hides_nothing(mask: float) -> None:
    """Beside a logit of -1e9 every other number is less than a rounding: neither doubt may drown in it, nor a sound
    model be taken for a saturated one."""
    parts = {scaled(1.2): WRONG, COUPLED["the batch's mean subtracted"]: COUPLED_ROWS, (lambda h: h): AGREES}
    for part, expected in parts.items():
        build = layers(
            lambda m, x, part=part: m.b(torch.tanh(part(m.a(x)))).masked_fill(torch.tensor([False, True, False]), mask)
        )
        assert outcome(Served(build()).ask(ca.Saliency())[0]) == expected


@pytest.mark.parametrize("draw", list(DRAWS))
def test_generators_of_the_model_s_own(draw: str) -> None:
    """Wherever a model keeps a generator, a run moves it, though that rarely shows."""
    drawn = DRAWS[draw]
    build = layers(lambda m, x: m.b(torch.tanh(Rarely(partial(drawn, m), 0.01)(m.a(x)))))
    assert outcome(Served(with_generators(build())).ask(ca.Saliency())[0]) == RANDOM
    quiet = layers(lambda m, x: m.b(torch.tanh(m.a(x))))
    assert outcome(Served(with_generators(quiet())).ask(ca.Saliency())[0]) == AGREES


IN_GRAD_MODE: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.5, training=torch.is_grad_enabled()),
    "other values": lambda h: h * (1.2 if torch.is_grad_enabled() else 1.0),
}


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(IN_GRAD_MODE))
@pytest.mark.parametrize(
    "asked",
    [ca.Saliency(), ca.IntegratedGradients(n_steps=8), ca.NeuronGradient(neuron=ca.Neuron("t", (1,)))],
    ids=lambda asked: type(asked).__name__,
)
def test_a_model_that_is_another_with_gradients(asked: Attribution, name: str, mode: CheckMode) -> None:
    """What Captum differentiates must be what the model predicts."""
    build = layers(lambda m, x: m.b(m.t(IN_GRAD_MODE[name](m.a(x)))), t=nn.Tanh)
    assert outcome(Served(build()).ask(asked, mode=mode)[0]) == RANDOM


def test_a_neuron_that_leads_nowhere_has_doubts_of_its_own() -> None:
    """Rows may depend on each other in what is explained, and not in what the model returns."""
    for part, expected in ((COUPLED["the batch's mean subtracted"], COUPLED_ROWS), (lambda h: h, AGREES)):

        def wiring(m: Any, x: Tensor, part: Callable[[Tensor], Tensor] = part) -> Any:
            m.aux(part(m.a(x)))
            return m.b(torch.tanh(m.a(x)))

        build = layers(wiring, aux=lambda: nn.Linear(16, 4))
        assert outcome(Served(build()).ask(ca.NeuronGradient(neuron=ca.Neuron("aux", (1,))))[0]) == expected


def only_where(is_wrong: Callable[[Tensor], bool]) -> Served:
    """A model whose gradient is wrong on some inputs."""
    return Served(layers(lambda m, x: m.b(torch.tanh(scaled(1.5 if is_wrong(x) else 1.0)(m.a(x)))))())


@pytest.mark.parametrize(
    ("is_wrong", "faulty"),
    [
        (lambda x: float(x.detach().sum()) < 0, {"x": -X["x"].abs()}),
        (lambda x: float(x.detach().abs().max()) > 9, {"x": 6 * X["x"]}),
        (lambda x: len(x) > 4, {"x": noise(7, 8)}),
        (lambda x: len(x) == 1, {"x": X["x"][:1]}),
    ],
    ids=["negative", "large", "many rows", "one row"],
)
def test_a_fault_that_the_first_inputs_did_not_have(
    is_wrong: Callable[[Tensor], bool], faulty: dict[str, Tensor]
) -> None:
    """The second request is doubted, the first and the third are not: theirs are right."""
    served, sound = only_where(is_wrong), {"x": X["x"].abs()}
    found = [outcome(served.ask(ca.Saliency(), inputs=inputs)[0]) for inputs in (sound, faulty, sound)]
    assert found == [AGREES, WRONG, AGREES]


def test_a_model_is_looked_at_again() -> None:
    """Whatever the first inputs showed, the fourth use of a result looks at the inputs of then."""
    served = only_where(lambda x: 111 < float(x.detach().flatten()[0]) < 112)
    late = {"x": 111.5 + 0.1 * X["x"]}
    found = [outcome(served.ask(ca.InputXGradient(), inputs=inputs)[0])[1] for inputs in (X, late, late, late, X)]
    assert found[3:] == [Cause.WRONG_BACKWARD, None]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_forward_hook_that_comes_later(everywhere: bool) -> None:
    """A hook that puts hooks on tensors is no backward hook, and is seen when it comes and when it goes."""
    model = layers(lambda m, x: m.b(m.t(m.a(x))), t=nn.Tanh)()
    served = Served(model)

    def quarter(module: nn.Module, into: Any, out: Any) -> None:
        if isinstance(module, nn.Tanh) and out.requires_grad:
            out.register_hook(lambda gradient: gradient / 4)

    part: Any = model.t
    register = nn.modules.module.register_module_forward_hook if everywhere else part.register_forward_hook
    assert outcome(served.ask(ca.Saliency())[0]) == AGREES
    handle = register(quarter)
    try:
        assert outcome(served.ask(ca.Saliency())[0]) == WRONG
    finally:
        handle.remove()
    assert outcome(served.ask(ca.Saliency())[0]) == AGREES


@pytest.mark.parametrize("mode", CHECKED)
def test_one_row_beside_which_captum_puts_smaller_ones(mode: CheckMode) -> None:
    """One row alone is the largest of its batch; the points that Captum adds are not."""
    asked, one = ca.GradientShap(baselines=ZEROS), {"x": X["x"][:1]}
    for part, expected in ((COUPLED["divided by the batch's largest"], COUPLED_ROWS), (lambda h: h, AGREES)):
        build = layers(lambda m, x, part=part: m.b(torch.tanh(part(m.a(x)))))
        assert outcome(Served(build()).ask(asked, inputs=one, mode=mode, seed=1)[0]) == expected


LIFTED = [
    ca.LayerDeepLift(layer="a"),
    ca.LayerDeepLiftShap(layer="a", baselines=ZEROS),
    ca.NeuronDeepLift(neuron=ca.Neuron("c", (1,))),
    ca.NeuronGuidedBackprop(neuron=ca.Neuron("c", (1,))),
]


@pytest.mark.parametrize("asked", LIFTED, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("name", ["clamp", "where", "an assignment by index", "a function of the model's own"])
def test_a_hidden_relu_behind_a_layer_and_before_a_neuron(name: str, asked: Attribution) -> None:
    """It matters between the layer and the target, or between the input and the neuron, and nowhere else."""
    parts: dict[str, Callable[[], Any]] = {"c": lambda: nn.Linear(16, 16), "r": nn.ReLU, "r0": nn.ReLU}
    relu = RELUS[name]
    on_the_way = layers(lambda m, x: m.b(m.r(m.c(relu(m.a(x))))), **parts)
    assert outcome(Served(on_the_way()).ask(asked)[0])[1] is Cause.FUNCTIONAL_NONLINEARITY
    if isinstance(asked, ca.NeuronDeepLift | ca.NeuronGuidedBackprop):
        aside = layers(lambda m, x: m.b(relu(m.c(m.r(m.a(x))))), **parts)
    else:
        aside = layers(lambda m, x: m.b(m.r(m.c(m.r0(m.a(relu(x)))))), **parts)
    both_signs = {"x": X["x"] * torch.tensor([1.0, -1.0] * 4)}  # in every row, so that something of it arrives
    assert outcome(Served(aside()).ask(asked, inputs=both_signs)[0]) == AGREES


def test_a_hidden_relu_that_is_the_neuron_s_own() -> None:
    """The neuron's module returns what it rectified, by a function or in place."""
    for name in ("clamp", "an assignment by index", "a function of the model's own"):
        build = layers(lambda m, x, name=name: m.b(m.i(RELUS[name](m.r(m.a(x)) - 0.1))), i=nn.Identity, r=nn.ReLU)
        asked = ca.NeuronGuidedBackprop(neuron=ca.Neuron("i", (1,)))
        assert outcome(Served(build()).ask(asked)[0])[1] is Cause.FUNCTIONAL_NONLINEARITY


def test_a_rectifier_that_the_first_inputs_did_not_use() -> None:
    """Where nothing was negative, nothing was rectified: later inputs are looked at again."""
    build = layers(lambda m, x: m.b(m.r(m.c((m.a(x)).clamp(min=0)))), c=lambda: nn.Linear(16, 16), r=nn.ReLU)
    model: Any = build()
    with torch.no_grad():
        model.a.bias.fill_(50.0)
    served, large = Served(model), {"x": 100 * X["x"]}
    found = [outcome(served.ask(ca.GuidedBackprop(), inputs=inputs)[0])[1] for inputs in (X, large, large, large)]
    assert found[0] is None
    assert found[3] is Cause.FUNCTIONAL_NONLINEARITY


ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "expit": torch.special.expit,
    "a product": lambda h: h * h.roll(1, 1),
    "a leaky ReLU by hand": lambda h: torch.where(h > 0, h, 0.1 * h),
    "a normalisation": lambda h: h / h.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("name", list(ODD))
@pytest.mark.parametrize("asked", [ca.DeepLift(), LIFTED[0], LIFTED[1]], ids=lambda asked: type(asked).__name__)
def test_an_operation_without_a_rule(asked: Attribution, name: str) -> None:
    """What is neither linear nor a nonlinearity with a rule shows in the sums: then no agreement counts."""
    build = layers(lambda m, x: m.b(m.r(m.c(ODD[name](m.a(x))))), c=lambda: nn.Linear(16, 16), r=nn.ReLU)
    assert outcome(Served(build()).ask(asked)[0])[1] is Cause.FUNCTIONAL_NONLINEARITY


def test_a_model_that_changes_in_the_middle_of_many_passes() -> None:
    """The first of an ablation's passes is as the request's: the last is looked at."""
    calls, begin = 0, 10**6

    def drifting(m: Any, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return m.b(torch.tanh(m.a(x))) * (1 + 0.1 * max(0, calls - begin))

    served = Served(layers(drifting)())
    assert outcome(served.ask(ca.FeatureAblation())[0]) == AGREES
    begin = calls + 3
    assert outcome(served.ask(ca.FeatureAblation())[0]) == RANDOM
