"""KernelShap and Lime: Captum's own answers, held against fits of our own to raw outputs of forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from math import factorial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex, Surrogate
from cutaway.contract.results import AttributionResult, Cause, Verdict
from cutaway.engine.references import surrogates as references
from cutaway.engine.references.surrogates import jackknife, least_squares
from tests.support.broken_captum import spoiled, stale
from tests.support.checked_attributions import CHECKED, MLP, ask, noise, verdict, wired
from tests.support.perturbation_models import GAINED, ONE_NUMBER, SEED, TOKENS, ids
from tests.support.state_snapshot import untouched

Build = Callable[[], nn.Module]

PAIRS = np.array([[0, 0, 1, 1, 2, 2, 3, 3]])
OWN = np.array([[0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 3, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 2, 3], [3, 3, 3, 2, 2, 2, 1, 0]])
REUSED = wired(
    lambda m, x: m.head(m.r(m.a(m.r(m.a(x))))), a=lambda: nn.Linear(8, 8), head=lambda: nn.Linear(8, 3),
    r=lambda: nn.ReLU(inplace=True),
)  # fmt: skip


def loud(build: Build) -> Build:
    """A network whose outputs move enough for Lime's penalty, which is the same for all."""
    return wired(lambda m, **inputs: 100 * m.net(**inputs), net=build)


class Case(NamedTuple):
    """A network, its inputs for a number of rows, and the fits that suit it."""

    build: Build
    inputs: Callable[[int], Mapping[str, Tensor]]
    asked: tuple[Surrogate, ...]


CASES: dict[str, Case] = {
    "perceptron": Case(
        MLP,
        lambda rows: {"x": noise(rows, 8)},
        (
            ca.KernelShap(),
            ca.KernelShap(n_samples=24, baselines={"x": 0.5}, masks={"x": PAIRS}),
            ca.Lime(),
            ca.Lime(n_samples=30, baselines={"x": -0.5}, masks={"x": PAIRS}),
        ),
    ),
    "modules called twice": Case(REUSED, lambda rows: {"x": noise(rows, 8)}, (ca.KernelShap(), ca.Lime())),
    "token ids": Case(
        TOKENS,
        lambda rows: {"ids": ids(rows), "weight": noise(rows, 5)},
        (ca.KernelShap(inputs=("ids",)), ca.Lime(inputs=("ids", "weight"), n_samples=50, baselines={"ids": 3})),
    ),
    "several inputs": Case(
        GAINED,
        lambda rows: {"x": noise(rows, 4), "y": noise(rows, 3, seed=2), "gain": noise(rows, seed=3)},
        (
            ca.KernelShap(inputs=("y", "gain")),
            ca.KernelShap(masks={"y": np.array([[5, 5, 6]]), "x": np.array([[6, 0, 0, 5]])}),
            ca.Lime(n_samples=40),
            ca.Lime(inputs=("x",), n_samples=30),
        ),
    ),
    "one number an example": Case(ONE_NUMBER, lambda rows: {"x": noise(rows, 6)}, (ca.KernelShap(), ca.Lime())),
}


@pytest.mark.parametrize("kind", [ca.KernelShap, ca.Lime])
def test_masks_of_each_example_are_its_own(kind: type[Surrogate]) -> None:
    """Elements of one feature have one number, row by row; the check agrees."""
    got = ask(loud(MLP)(), {"x": noise(4, 8)}, kind(masks={"x": OWN}), seed=SEED).attributions[0]
    for values, numbers in zip(got.values["x"], OWN):
        assert all(len(set(values[numbers == each])) == 1 for each in range(4))
    assert verdict(got) is Verdict.AGREES


def test_kernel_shap_of_every_coalition_is_the_shapley_value() -> None:
    """With many draws of few features, what Captum says is what the sum over all subsets says."""
    model, x = MLP().double(), noise(1, 8, dtype=torch.float64)
    asked = ca.KernelShap(masks={"x": PAIRS}, n_samples=1000)
    got = ask(model, {"x": x}, asked, target=ClassIndex((1,)), seed=SEED, check=CheckRequest(CheckMode.OFF))

    def value(members: tuple[int, ...]) -> float:
        return float(model(torch.where(torch.tensor(np.isin(PAIRS, members)), x, 0.0))[0, 1].detach())

    for feature in range(4):
        others = [each for each in range(4) if each != feature]
        expected = sum(
            factorial(size) * factorial(3 - size) / factorial(4) * (value((*chosen, feature)) - value(chosen))
            for size in range(4)
            for chosen in combinations(others, size)
        )
        assert got.attributions[0].values["x"][0, 2 * feature] == pytest.approx(expected, abs=0.02)


def test_lime_is_least_under_the_lasso() -> None:
    """No step from our fit makes what the Lasso minimises smaller: the optimality conditions hold, within its
    tolerance."""
    numbers = np.random.default_rng(0)
    masks = (numbers.random((40, 6)) < 0.5).astype(np.float64)
    weights, targets = numbers.random(40) + 0.1, masks @ np.array([1.0, -0.5, 0.2, 0, 0, 0.005]) + 3
    found = references.lasso(masks, targets, weights).coefficients
    centred = masks - np.average(masks, axis=0, weights=weights)
    left = targets - np.average(targets, weights=weights) - centred @ found
    pull = centred.T @ (weights * left) / weights.sum()
    assert np.allclose(pull[found != 0], references.PENALTY * np.sign(found[found != 0]), atol=1e-4)
    assert (np.abs(pull[found == 0]) <= references.PENALTY + 1e-4).all()
    assert found[5] == 0


def test_what_rounding_leaves_is_no_disagreement() -> None:
    """However closely the caller wants the two to match: Captum solves in float32."""
    exact = CheckRequest(CheckMode.INDEPENDENT, relative_tolerance=1e-15)
    result = ask(loud(MLP)(), {"x": noise(3, 8)}, ca.KernelShap(), ca.Lime(), seed=SEED, check=exact)
    for got in result.attributions:
        assert verdict(got) is Verdict.INCONCLUSIVE
        assert got.checks[0].cause is Cause.CANCELLATION


# Captum gone wrong.

INPUTS = CASES["several inputs"].inputs(3)
TARGET = ClassIndex((0, 1, 2))
SPOILED: tuple[Surrogate, ...] = (
    ca.KernelShap(inputs=("x",), baselines={"x": 0.5}, n_samples=16),
    ca.Lime(inputs=("x",), baselines={"x": 0.5}, n_samples=16),
)


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Any, dict[str, Any]], None]:
    return lambda method, options: options.update({name: change(options[name])})


def other_weights(method: Any, options: dict[str, Any]) -> None:
    method.similarity_func = lambda *_, **__: 1.0


def other_draws(method: Any, options: dict[str, Any]) -> None:
    torch.rand(1)


def other_penalty(method: Any, options: dict[str, Any]) -> None:
    method.interpretable_model.construct_kwargs["positive"] = True


FAULTS: dict[str, dict[str, Any]] = {
    "a hundredth too large": {"values": lambda values: values * 1.01},
    "a constant added": {"values": lambda values: values + 0.05},
    "shifted": {"values": lambda values: values.roll(1, -1)},
    "rows exchanged": {"values": lambda values: values.roll(1, 0)},
    "an element not a number": {"values": lambda values: values.index_fill(1, torch.tensor([0]), torch.nan)},
    "nothing but zeros": {"values": torch.zeros_like},
    "another baseline": {"arguments": changed("baselines", lambda given: tuple(each + 0.1 for each in given))},
    "another target": {"arguments": changed("target", lambda target: (target + 1) % 3)},
    "further inputs exchanged": {
        "arguments": changed("additional_forward_args", lambda given: tuple(each.flip(0) for each in given))
    },
    "features joined": {"arguments": changed("feature_mask", lambda given: tuple(each.clamp(max=2) for each in given))},
    "fewer samples": {"arguments": changed("n_samples", lambda samples: samples - 1)},
    "other draws": {"arguments": other_draws},
    "other weights": {"arguments": other_weights},
    "another penalty": {"arguments": other_penalty},
}


def answer(asked: Surrogate, mode: CheckMode, inputs: Mapping[str, Tensor] = INPUTS) -> AttributionResult:
    result = ask(loud(GAINED)(), inputs, asked, target=TARGET, check=CheckRequest(mode), seed=SEED)
    return result.attributions[0]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("asked", SPOILED, ids=lambda asked: type(asked).__name__)
def test_a_wrong_surrogate_is_never_missed(asked: Surrogate, fault: str, mode: CheckMode) -> None:
    """Whatever is wrong with Captum's answer, the verdict is DISAGREES, with a reason."""
    with spoiled(type(asked), **FAULTS[fault]):
        got = answer(asked, mode)
    assert verdict(got) is Verdict.DISAGREES
    assert got.checks[0].reason


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", SPOILED, ids=lambda asked: type(asked).__name__)
def test_a_stale_surrogate_is_never_missed(asked: Surrogate, mode: CheckMode) -> None:
    """The answer to the previous call's input is found out."""
    with stale(type(asked)):
        right = answer(asked, mode, {**INPUTS, "x": INPUTS["x"] + 1})
        late = answer(asked, mode)
    assert (verdict(right), verdict(late)) == (Verdict.AGREES, Verdict.DISAGREES)


# What is promised besides.

BOTH = (ca.KernelShap(n_samples=30), ca.Lime(n_samples=30))


@pytest.mark.parametrize("asked", [ca.KernelShap(n_samples=6), ca.Lime(n_samples=5)], ids=["KernelShap", "Lime"])
def test_too_few_draws_leave_the_fit_open_and_say_so(asked: Surrogate) -> None:
    """Fewer draws than features fit in many ways: INCONCLUSIVE, with what to do."""
    got = ask(MLP(), {"x": noise(2, 8)}, asked, seed=SEED).attributions[0]
    assert verdict(got) is Verdict.INCONCLUSIVE
    assert got.checks[0].cause is Cause.UNDERDETERMINED
    assert "more samples" in got.checks[0].reason


def test_a_lime_of_nothing_but_zeros_says_so() -> None:
    """Captum's penalty is one for all targets: one that moves little has no weight left, and nothing is explained."""
    model = wired(lambda m, x: m.head(x) / 1000, head=lambda: nn.Linear(8, 3))()
    shap, lime = ask(model, {"x": noise(2, 8)}, *BOTH, seed=SEED).attributions
    assert not lime.values["x"].any()
    assert (verdict(shap), verdict(lime)) == (Verdict.AGREES, Verdict.INCONCLUSIVE)
    assert "makes all coefficients of example" in lime.checks[0].reason


def test_the_same_seed_gives_the_same_surrogate_and_another_seed_another() -> None:
    """Whatever the generators did before."""
    answers = []
    for seed, before in ((SEED, 1), (SEED, 2), (SEED + 1, 2)):
        torch.manual_seed(before)
        result = ask(loud(MLP)(), {"x": noise(3, 8)}, *BOTH, seed=seed, check=CheckRequest(CheckMode.OFF))
        answers.append([got.values["x"] for got in result.attributions])
    assert all(np.array_equal(one, other) for one, other in zip(answers[0], answers[1]))
    assert not any(np.array_equal(one, other) for one, other in zip(answers[0], answers[2]))


def test_surrogates_of_an_edited_model_agree() -> None:
    """An edit that treats all rows alike holds in every pass, and changes what is explained."""
    edits = (ca.Scale("net.a", factor=2.0),)
    inputs = {"x": noise(3, 8)}
    edited = ask(loud(REUSED)(), inputs, *BOTH, edits=edits, seed=SEED).attributions
    plain = ask(loud(REUSED)(), inputs, *BOTH, seed=SEED).attributions
    assert {verdict(got) for got in (*edited, *plain)} == {Verdict.AGREES}
    assert not any(np.allclose(one.values["x"], other.values["x"]) for one, other in zip(edited, plain))


def test_a_model_that_raises_on_the_way_is_left_as_it_was() -> None:
    """Whichever pass fails; the generators too."""
    for fails in (2, 3, 9, 60):
        runs: list[int] = []

        def wiring(m: Any, x: Tensor, runs: list[int] = runs, fails: int = fails) -> Tensor:
            runs.append(1)
            if len(runs) >= fails:
                raise ValueError("no more")
            return m.head(x)

        model = wired(wiring, head=lambda: nn.Linear(8, 3))()
        before = torch.get_rng_state()
        with untouched(model), pytest.raises(ca.InvalidArgument, match="no more"):
            ask(model, {"x": noise(2, 8)}, ca.KernelShap(), ca.Lime(), seed=SEED)
        assert torch.equal(torch.get_rng_state(), before)


# What cannot be asked.

BAD: dict[str, tuple[Surrogate, str, str]] = {
    "no sample": (ca.KernelShap(n_samples=0), "kernel_shap.n_samples", "from 1 up"),
    "too many samples": (ca.Lime(n_samples=10_000), "lime.n_samples", "take fewer samples"),
    "one feature": (ca.KernelShap(masks={"x": np.zeros((1, 8), np.int64)}), "kernel_shap.masks", "FeatureAblation"),
    "a mask of another shape": (ca.Lime(masks={"x": np.zeros((1, 7), np.int64)}), "lime.masks.by_input.x", "[1, 8]"),
    "a mask of floats": (ca.Lime(masks={"x": np.zeros((1, 8))}), "lime.masks.by_input.x", "integers"),
    "a baseline for nothing": (
        ca.KernelShap(baselines={"z": 0.0}),
        "kernel_shap.baselines.by_input.z",
        "not explained",
    ),
    "an input that was not sent": (ca.Lime(inputs=("z",)), "inputs", "no input 'z'"),
    "too many features": (ca.Lime(inputs=("wide",)), "lime.masks", "group elements"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_cannot_be_fitted_is_refused_before_anything_runs(name: str) -> None:
    """The error names the field of the contract and says what would do; the model has not run."""
    asked, field, words = BAD[name]
    ran: list[int] = []

    def wiring(m: Any, x: Tensor, wide: Tensor) -> Tensor:
        ran.append(1)
        return m.head(x) + wide.sum()

    inputs = {"x": noise(2, 8), "wide": noise(2, 5000)}
    asked = asked if asked.inputs else type(asked)(**{**vars(asked), "inputs": ("x",)})
    with pytest.raises(ca.InvalidArgument) as refused:
        ask(wired(wiring, head=lambda: nn.Linear(8, 3))(), inputs, asked)
    assert refused.value.field == f"attributions[0].{field}"
    assert words in refused.value.message
    assert not ran


ROWS_APART: dict[str, dict[str, Any]] = {
    "a target with numbers for each row": {"target": ca.CrossEntropy((0, 1, 2))},
    "an edit of one row": {"edits": (ca.Zero("a", rows=(1,)),)},
    "an edit with a tensor": {"edits": (ca.Add("a", addend=np.ones((3, 8), np.float32)),)},
}


@pytest.mark.parametrize("name", list(ROWS_APART))
def test_rows_that_differ_by_more_than_their_inputs_are_sent_one_by_one(name: str) -> None:
    """Captum runs each example by itself, where rows have no numbers: several are refused, and said what to do."""
    with pytest.raises(ca.InvalidArgument, match="one example a request"):
        ask(REUSED(), {"x": noise(3, 8)}, ca.KernelShap(), seed=SEED, **ROWS_APART[name])


def test_one_example_may_have_any_target() -> None:
    """A loss, a sum, an element: the scalar is what is fitted."""
    for target in (ca.CrossEntropy((1,)), ca.OutputSum(), ca.MultiIndex(((1,),))):
        for got in ask(loud(MLP)(), {"x": noise(1, 8)}, *BOTH, target=target, seed=SEED).attributions:
            assert verdict(got) is Verdict.AGREES, (target, got.checks)


# Standard errors.


@pytest.mark.parametrize("asked", [ca.KernelShap(n_samples=60), ca.Lime(n_samples=60)], ids=lambda a: type(a).__name__)
def test_standard_errors_are_the_scatter_of_seeds(asked: Attribution) -> None:
    """The jackknife of one run says how far the answers of other seeds lie apart, within a factor of two."""
    model, inputs = loud(MLP)(), {"x": noise(1, 8)}
    runs = [ask(model, inputs, asked, seed=seed).attributions[0] for seed in range(40)]
    scatter = np.std([run.values["x"][0] for run in runs], axis=0)
    stated = np.mean([run.standard_errors["x"][0] for run in runs], axis=0)
    assert stated.shape == (8,)
    assert 0.5 < stated.mean() / scatter.mean() < 2, (stated, scatter)


def test_the_jackknife_is_that_of_fits_without_each_draw() -> None:
    """By hand: the fit again, without one draw after the other."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 2, (40, 5)).astype(float)
    targets = masks @ np.arange(5.0) + generator.normal(size=40)
    weights = generator.uniform(0.5, 2, 40)
    fit = least_squares(masks, targets, weights).coefficients
    without = [least_squares(*(np.delete(each, draw, axis=0) for each in (masks, targets, weights))).coefficients
               for draw in range(40)]  # fmt: skip
    by_hand = np.sqrt(39 / 40 * ((without - np.mean(without, axis=0)) ** 2).sum(axis=0))
    np.testing.assert_allclose(jackknife(masks, targets, weights, fit, 0), by_hand, rtol=1e-9)
    assert np.isinf(jackknife(masks[:6], targets[:6], weights[:6], fit, 0)).all()


def test_no_standard_errors_without_a_check() -> None:
    """They need passes of their own; and a dry run knows their shapes."""
    (got,) = ask(MLP(), {"x": noise(1, 8)}, ca.KernelShap(), seed=SEED, check=CheckRequest(CheckMode.OFF)).attributions
    assert got.standard_errors == {}
