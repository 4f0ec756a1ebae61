"""Attacks: each step, search and outcome held against autograd by hand; faults of Captum are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from captum import robust
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import Attack, CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import AttackResult, Cause, InspectResult, Verdict
from cutaway.contract.results.arrays import by_name, entries
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import Cancellation
from cutaway.engine.planning.plan import plan_request
from tests.support.checked_attributions import CHECKED, ask, noise, wired
from tests.support.state_snapshot import untouched

TWO = wired(
    lambda m, x, y: m.head(torch.cat([torch.tanh(m.a(x)), m.b(y).mean(2)], 1)),
    a=lambda: nn.Linear(5, 6), b=lambda: nn.Conv1d(2, 4, 3), head=lambda: nn.Linear(10, 3),
)  # fmt: skip
PICTURE = wired(
    lambda m, image: m.head(torch.relu(m.b(torch.relu(m.a(image)))).flatten(1)),
    a=lambda: nn.Conv2d(3, 8, 3), b=lambda: nn.Conv2d(8, 8, 3), head=lambda: nn.Linear(512, 4),
)  # fmt: skip
LABELS = (0, 2, 1)
TABLE = wired(
    lambda m, x: m.b(torch.tanh(m.a((x - m.mean) / m.spread))),
    a=lambda: nn.Linear(4, 16), b=lambda: nn.Linear(16, 3),
    mean=lambda: nn.Parameter(torch.tensor([40.0, 0.5, 3e4, 0.5]), requires_grad=False),
    spread=lambda: nn.Parameter(torch.tensor([20.0, 0.3, 2e4, 0.5]), requires_grad=False),
)  # fmt: skip
COLUMNS = {"x": torch.tensor([[34.0, 0.2, 52000.0, 1.0], [61.0, 0.9, 18000.0, 0.0], [20.0, 0.1, 0.0, 1.0]])}


def given(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {"x": noise(3, 5, dtype=dtype), "y": noise(3, 2, 7, dtype=dtype, seed=2)}


def attacked(model: nn.Module, inputs: Mapping[str, Tensor], *attacks: Attack, **more: Any) -> InspectResult:
    return ask(model, inputs, attacks=attacks, **{"target": ClassIndex(LABELS), "seed": 3, **more})


def one(model: nn.Module, inputs: Mapping[str, Tensor], attack: Attack, **more: Any) -> Any:
    """The `AttackResult`; its arrays are there, or a test fails."""
    (result,) = attacked(model, inputs, attack, **more).attacks
    return result


def losses(model: nn.Module, inputs: Mapping[str, Tensor], labels: Any = LABELS) -> Tensor:
    return F.cross_entropy(model(**inputs), torch.tensor(labels), reduction="none")


def gradients(model: nn.Module, inputs: Mapping[str, Tensor], labels: Any = LABELS) -> dict[str, Tensor]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    losses(model, leaves, labels).sum().backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def step(model: nn.Module, inputs: Mapping[str, Tensor], size: float) -> dict[str, Tensor]:
    found = gradients(model, inputs)
    return {name: tensor + size * found[name].sign() for name, tensor in inputs.items()}


def verdicts(result: AttackResult) -> list[Verdict]:
    return [check.verdict for check in result.checks]


def agree(result: AttackResult) -> bool:
    return bool(result.checks) and {check.verdict for check in result.checks} == {Verdict.AGREES}


# The steps, by hand.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_fgsm_is_a_step_along_the_sign_of_the_gradient(dtype: torch.dtype) -> None:
    model, inputs = TWO().to(dtype), given(dtype)
    with untouched(model):
        result = one(model, inputs, ca.FGSM(0.1))
    expected = step(model, inputs, 0.1)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(np.array(result.inputs[name], np.float64), tensor.double().numpy())
    assert agree(result)
    np.testing.assert_allclose(result.linf, [0.1] * 3, atol=0.1 * torch.finfo(dtype).eps * 64)


def test_captum_by_hand_has_the_same_inputs() -> None:
    model, inputs = TWO(), given(torch.float32)

    def forward(*tensors: Tensor) -> Tensor:
        output: Tensor = model(*tensors)
        return output

    loss, labels = (lambda output, y: F.cross_entropy(output, y, reduction="none")), torch.tensor(LABELS)
    values = tuple(inputs.values())
    by_hand = robust.PGD(forward, loss, lower_bound=-3.0).perturb(values, 0.2, 0.05, 7, labels, norm="L2")
    result = one(model, inputs, ca.PGD(0.2, 0.05, 7, norm=ca.AttackNorm.L2, lower_bound=-3.0))
    for name, tensor in zip(inputs, by_hand):
        np.testing.assert_allclose(result.inputs[name], tensor.detach(), atol=1e-6)


def test_a_targeted_attack_lowers_the_loss_of_the_class() -> None:
    model, inputs = TWO().double(), given()
    result = one(model, inputs, ca.FGSM(0.1, targeted=True))
    for name, tensor in step(model, inputs, -0.1).items():
        np.testing.assert_array_equal(result.inputs[name], tensor)
    assert (result.losses < result.losses_before).all()
    assert agree(result)
    many = one(model, inputs, ca.PGD(5.0, 0.1, 60, targeted=True))
    assert many.classes.tolist() == list(LABELS)
    assert many.succeeded.all()


@pytest.mark.parametrize("norm", ca.AttackNorm)
def test_pgd_puts_each_step_back_into_the_ball_of_each_input(norm: ca.AttackNorm) -> None:
    model, inputs = TWO().double(), given()
    bounds, radius = (-2.0, 2.5), 0.4
    inputs = {name: tensor.clamp(*bounds) for name, tensor in inputs.items()}
    result = one(model, inputs, ca.PGD(radius, 0.1, 9, norm=norm, lower_bound=bounds[0], upper_bound=bounds[1]))
    points = inputs
    for _ in range(9):
        moved = step(model, points, 0.1)
        points = {}
        for name, tensor in moved.items():
            change = tensor - inputs[name]
            if norm is ca.AttackNorm.LINF:
                change = change.clamp(-radius, radius)
            else:
                lengths = change.flatten(1).norm(dim=1).clamp(min=radius)
                change *= (radius / lengths).reshape(-1, *[1] * (change.ndim - 1))
            points[name] = (inputs[name] + change).clamp(*bounds)
    for name, tensor in points.items():
        np.testing.assert_allclose(result.inputs[name], tensor, rtol=0, atol=1e-6)
        if norm is ca.AttackNorm.L2:
            lengths = (torch.from_numpy(np.array(result.inputs[name])) - inputs[name]).flatten(1).norm(dim=1)
            np.testing.assert_array_less(lengths, radius + 1e-9)
    assert agree(result)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", ca.AttackNorm)
def test_a_random_start_is_inside_of_the_ball_and_repeats_with_its_seed(
    norm: ca.AttackNorm, dtype: torch.dtype
) -> None:
    """Plain Captum fails here in L2, or gives rows the radius of others; without steps only the start is left."""
    model, inputs = TWO().to(dtype), given(dtype)
    attack = ca.PGD(0.5, 0.0, 1, norm=norm, random_start=True, masks={"y": np.arange(14).reshape(1, 2, 7) % 2})
    with untouched(model):
        first, same = (one(model, inputs, attack) for _ in range(2))
    other = one(model, inputs, attack, seed=4)
    for name, tensor in inputs.items():
        values = np.array(first.inputs[name], np.float64)
        np.testing.assert_array_equal(values, np.array(same.inputs[name], np.float64))
        assert (values != np.array(other.inputs[name], np.float64)).any()
        change = (values - tensor.double().numpy()).reshape(3, -1)
        lengths = np.abs(change).max(1) if norm is ca.AttackNorm.LINF else np.linalg.norm(change, axis=1)
        assert (lengths < 0.5 + 4 * torch.finfo(dtype).eps * 3).all()
        assert len({round(float(length), 4) for length in lengths}) == 3
    assert (np.array(first.inputs["y"], np.float64) == inputs["y"].double().numpy()).reshape(3, -1)[:, ::2].all()
    assert first.checks[1].verdict is Verdict.AGREES


def test_masks_and_names_say_what_changes() -> None:
    model, inputs = TWO().double(), given()
    mask = np.array([[1, 0, 0, 1, 1]])
    result = one(model, inputs, ca.PGD(0.5, 0.2, 4, inputs=("x",), masks={"x": mask}))
    assert set(result.inputs) == {"x"}
    moved = result.inputs["x"] != inputs["x"].numpy()
    assert (moved == np.broadcast_to(mask == 1, moved.shape)).all()
    assert agree(result)


LOSSES: tuple[tuple[Any, Callable[[Tensor], Tensor]], ...] = (
    (ca.OutputSum(), lambda output: -output.sum(1)),
    (ca.Contrast(ClassIndex((0,)), ClassIndex((2,))), lambda output: output[:, 2] - output[:, 0]),
    (ca.CrossEntropy((1, 1, 0)), lambda output: F.cross_entropy(output, torch.tensor((1, 1, 0)), reduction="none")),
    (ca.LogProbability(ClassIndex((1,))), lambda output: -output.log_softmax(1)[:, 1]),
)


@pytest.mark.parametrize(("target", "loss"), LOSSES, ids=lambda each: type(each).__name__)
def test_other_targets_fall_and_losses_rise(target: Any, loss: Callable[[Tensor], Tensor]) -> None:
    model, inputs = TWO().double(), given()
    result = one(model, inputs, ca.FGSM(0.1), target=target)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    loss(model(**leaves)).sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        np.testing.assert_array_equal(result.inputs[name], (inputs[name] + 0.1 * leaf.grad.sign()))
    np.testing.assert_allclose(result.losses_before, loss(model(**inputs)).detach(), atol=1e-12)
    moved = {name: torch.from_numpy(np.array(values)) for name, values in result.inputs.items()}
    np.testing.assert_allclose(result.losses, loss(model(**moved)).detach(), atol=1e-12)
    assert result.succeeded is None
    assert agree(result)


def test_probabilities_have_the_loss_that_captum_gives_them() -> None:
    model, inputs = wired(lambda m, x: m.a(x).softmax(1), a=lambda: nn.Linear(5, 3))().double(), {"x": given()["x"]}
    result = one(model, inputs, ca.FGSM(0.1, of_probabilities=True))
    by_hand = robust.FGSM(model).perturb(inputs["x"], 0.1, torch.tensor(LABELS))
    np.testing.assert_array_equal(result.inputs["x"], by_hand.detach())
    with torch.no_grad():
        np.testing.assert_allclose(result.probabilities, model(by_hand).max(1).values)
    assert agree(result)


def test_an_edited_model_is_attacked_as_it_is_edited() -> None:
    model, inputs = TWO().double(), given()
    result = one(model, inputs, ca.FGSM(0.1), edits=(ca.Scale("a", factor=-2.0),))
    edited: Any = TWO().double()
    moved = {name: torch.from_numpy(np.array(values)) for name, values in result.inputs.items()}
    with edited.a.register_forward_hook(lambda module, args, output: -2 * output):
        for name, tensor in step(edited, inputs, 0.1).items():
            np.testing.assert_array_equal(result.inputs[name], tensor)
        np.testing.assert_allclose(result.predictions["output"], edited(**moved).detach(), atol=1e-12)


# What an attack changes.


def test_the_outcome_is_that_of_a_request_at_the_changed_inputs() -> None:
    """Predictions, and each explanation of the same class, beside how alike it is to that of the request."""
    model, inputs = PICTURE(), {"image": torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(5))}
    asked = (ca.Saliency(), ca.LayerGradCam(layer="b"), ca.IntegratedGradients(n_steps=8, metrics=(ca.Sparseness(),)))
    result = ask(model, inputs, *asked, attacks=(ca.PGD(3.0, 0.5, 12),), seed=3)
    attack: Any = result.attacks[0]
    assert result.targets is not None
    classes = ClassIndex(tuple(result.targets.tolist()))
    moved = {"image": torch.from_numpy(np.array(attack.inputs["image"]))}
    again = ask(model, moved, *asked, target=classes, seed=3)
    np.testing.assert_allclose(attack.predictions["output"], again.predictions["output"], atol=1e-6)
    np.testing.assert_allclose(attack.target_values, np.array(again.target_values), atol=1e-6)
    assert attack.classes.tolist() == again.predictions["output"].argmax(1).tolist()
    assert attack.succeeded.tolist() == (attack.classes != result.targets).tolist()
    assert attack.succeeded.any()
    change = attack.inputs["image"].astype(np.float64) - inputs["image"].double().numpy()
    np.testing.assert_allclose(attack.linf, np.abs(change).max((1, 2, 3)))
    np.testing.assert_allclose(attack.l2, np.sqrt((change**2).sum((1, 2, 3))))
    for here, there, beside in zip(result.attributions, again.attributions, attack.attributions, strict=True):
        name, before = next(iter(here.values.items()))
        after = beside.attribution.values[name]
        np.testing.assert_allclose(after, there.values[name], atol=1e-6)
        assert beside.attribution.verdict is there.verdict
        assert len(beside.attribution.metrics) == len(there.metrics)
        for row in range(3):
            first, second = before[row].ravel().astype(np.float64), after[row].ravel().astype(np.float64)
            cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
            assert beside.cosine[row] == pytest.approx(cosine, abs=1e-6)
            assert beside.rank_correlation[row] == pytest.approx(spearmanr(first, second)[0], abs=1e-6)


# The search.


def least(model: nn.Module, row: int, attack: Any, values: Any, name: str = "epsilon") -> float:
    """The first of all values, one by one, with another class."""
    own = {key: tensor[row : row + 1] for key, tensor in given().items()}
    for value in values:
        moved = own
        steps, size = (1, value) if isinstance(attack, ca.FGSM) else (int(value), attack.step_size)
        for _ in range(steps):
            found = gradients(model, moved, LABELS[row : row + 1])
            moved = {key: tensor + size * found[key].sign() for key, tensor in moved.items()}
        if int(model(**moved).argmax(1)) != LABELS[row]:
            return float(value)
    return float("nan")


@pytest.mark.parametrize("mode", ca.SearchMode)
def test_a_search_finds_the_least_value_of_each_row(mode: ca.SearchMode) -> None:
    model = TWO().double()
    result = one(model, given(), ca.FGSM(search=ca.MinParamPerturbation("epsilon", 0.6, 0.02, mode=mode)))
    expected = [least(model, row, ca.FGSM(), np.arange(30) * 0.02) for row in range(3)]
    assert np.isfinite(expected).any()
    assert len(set(expected)) > 1
    np.testing.assert_allclose(result.parameters, expected, atol=1e-9)
    assert agree(result)
    assert result.succeeded.tolist() == np.isfinite(expected).tolist()
    steps = one(model, given(), ca.PGD(9.0, 0.02, search=ca.MinParamPerturbation("n_steps", 30, 1, mode=mode)))
    expected = [least(model, row, ca.PGD(9.0, 0.02), range(30), "n_steps") for row in range(3)]
    np.testing.assert_allclose(steps.parameters, expected)
    assert agree(steps) or {check.cause for check in steps.checks} <= {None, Cause.NO_GRADIENT}


def test_a_search_without_success_returns_the_input() -> None:
    model, inputs = TWO().double(), given()
    labels = ClassIndex(tuple(model(**inputs).argmax(1).tolist()))
    result = one(model, inputs, ca.FGSM(search=ca.MinParamPerturbation("epsilon", 1e-6, 1e-7)), target=labels)
    assert np.isnan(result.parameters).all()
    assert not result.linf.any()
    assert agree(result)


# Verdicts.

ATTACKS = (
    ca.FGSM(0.05),
    ca.PGD(0.2, 0.05, 6),
    ca.PGD(0.3, 0.05, 6, norm=ca.AttackNorm.L2, random_start=True),
    ca.FGSM(search=ca.MinParamPerturbation("epsilon", 0.3, 0.05)),
)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_honest_attacks_agree(mode: CheckMode, dtype: torch.dtype) -> None:
    pictures = {"image": torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(5)).to(dtype)}
    for model, inputs in ((TWO(), given(dtype)), (PICTURE(), pictures)):
        for attack in ATTACKS:
            result = one(model.to(dtype), inputs, attack, target=ca.PredictedClass(), check=CheckRequest(mode))
            assert agree(result), [(check.compared, check.reason) for check in result.checks]
    assert not one(TWO(), given(torch.float32), ca.FGSM(), check=CheckRequest(CheckMode.OFF)).checks


def test_columns_of_a_table_with_other_scales_are_compared_each_by_itself() -> None:
    result = one(TABLE(), COLUMNS, ca.PGD(0.5, 0.1, 8, masks={"x": np.array([[1, 1, 0, 1]])}))
    assert agree(result)


def wrong(change: Callable[..., Any]) -> Callable[[Any], Any]:
    """What changes the result of one of Captum's methods."""

    def wrapped(own: Callable[..., Any]) -> Any:
        def method(self: Any, *args: Any, **named: Any) -> Any:
            return change(own(self, *args, **named), self, *args, **named)

        return method

    return wrapped


def moved(by: float, row: int = 1) -> Callable[..., Any]:
    def change(found: Any, *_: Any, **__: Any) -> Any:
        others = [tensor.clone() for tensor in found]
        others[0][row, 0] += by
        return tuple(others)

    return change


def half(found: Any, _: Any, inputs: Any, *__: Any, **___: Any) -> Any:
    return tuple((one + other) / 2 for one, other in zip(found, inputs))


def other_way(found: Any, _: Any, inputs: Any, *__: Any, **___: Any) -> Any:
    return tuple(2 * own - changed for changed, own in zip(found, inputs))


def without_ball(*_: Any, **__: Any) -> Any:
    """PGD that never puts a step back."""

    def perturb(self: Any, inputs: Any, radius: float, step_size: float, step_num: int, **named: Any) -> Any:
        further = {name: named[name] for name in ("additional_forward_args", "targeted", "mask")}
        for _ in range(step_num):
            inputs = self.fgsm.perturb(inputs, step_size, named["target"], **further)
        return inputs

    return perturb


def too_late(found: Any, self: Any, inputs: Any, *_: Any, attack_kwargs: Any, **__: Any) -> Any:
    value = found[1] + 2 * self.arg_step
    return self.attack(inputs, **attack_kwargs, **{self.arg_name: value}), value


def too_early(found: Any, self: Any, inputs: Any, *_: Any, attack_kwargs: Any, **__: Any) -> Any:
    value = found[1] - self.arg_step
    return self.attack(inputs, **attack_kwargs, **{self.arg_name: value}), value


SEARCH = ca.FGSM(search=ca.MinParamPerturbation("epsilon", 2.0, 0.05))
FAULTS: dict[str, tuple[Attack, type, str, Any, int, Cause]] = {
    "an element elsewhere": (ca.FGSM(0.1), robust.FGSM, "perturb", wrong(moved(1e-3)), 0, Cause.UNKNOWN),
    "half a step": (ca.FGSM(0.1), robust.FGSM, "perturb", wrong(half), 0, Cause.UNKNOWN),
    "the other way": (ca.FGSM(0.1), robust.FGSM, "perturb", wrong(other_way), 0, Cause.UNKNOWN),
    "out of the ball": (ca.PGD(0.1, 0.05, 6), robust.PGD, "perturb", without_ball, 1, Cause.OUT_OF_BOUNDS),
    "out of the ball in L2": (
        ca.PGD(0.1, 0.05, 6, norm=ca.AttackNorm.L2), robust.PGD, "perturb", without_ball, 1, Cause.OUT_OF_BOUNDS,
    ),
    "out of the mask": (
        ca.FGSM(0.1, masks={"x": np.array([[0, 1, 1, 1, 1]])}),
        robust.FGSM, "perturb", wrong(moved(0.05)), 1, Cause.OUT_OF_BOUNDS,
    ),
    "out of its bounds": (
        ca.FGSM(0.1, upper_bound=2.6), robust.FGSM, "perturb", wrong(moved(3.0)), 1, Cause.OUT_OF_BOUNDS,
    ),
    "half a step of PGD": (ca.PGD(0.2, 0.05, 4), robust.FGSM, "perturb", wrong(half), 0, Cause.UNKNOWN),
    "a search that ends late": (SEARCH, robust.MinParamPerturbation, "evaluate", wrong(too_late), 2, Cause.NOT_LEAST),
    "a search that ends early": (SEARCH, robust.MinParamPerturbation, "evaluate", wrong(too_early), 2, Cause.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_captum_are_found(fault: str, mode: CheckMode, monkeypatch: pytest.MonkeyPatch) -> None:
    attack, owner, name, change, check, cause = FAULTS[fault]
    model, inputs = TWO(), given(torch.float32)
    labels = ClassIndex(tuple(model(**inputs).argmax(1).tolist()))
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    result = one(model, inputs, attack, target=labels, check=CheckRequest(mode))
    assert (result.checks[check].verdict, result.checks[check].cause) == (Verdict.DISAGREES, cause)


@pytest.mark.parametrize("mode", CHECKED)
def test_another_loss_is_found(mode: CheckMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of the next class, which differs in some signs only, and in none for two of the rows."""
    own = robust.FGSM.__init__

    def init(self: Any, forward: Any, loss: Any, *bounds: float) -> None:
        own(self, forward, lambda output, y: loss(output.roll(1, dims=1), y), *bounds)

    monkeypatch.setattr(robust.FGSM, "__init__", init)
    result = one(TWO(), given(torch.float32), ca.FGSM(0.1), check=CheckRequest(mode))
    assert (result.checks[0].verdict, result.checks[0].cause) == (Verdict.DISAGREES, Cause.OTHER_PASSES)


class Turned(nn.Module):
    """A model whose gradients change their sign while ``turns``."""

    turns = False

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.a(x)
        if Turned.turns and output.requires_grad:
            output = output * -1 + output.detach() * 2
        return output


def test_separate_passes_find_what_only_the_passes_of_captum_have(monkeypatch: pytest.MonkeyPatch) -> None:
    own = robust._core.fgsm.compute_gradients

    def turned(*args: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Turned, "turns", True)
            return own(*args)

    torch.manual_seed(0)
    model, x = Turned(), {"x": noise(3, 5)}
    monkeypatch.setattr(robust._core.fgsm, "compute_gradients", turned)
    found = one(model, x, ca.FGSM(0.1), check=CheckRequest(CheckMode.INDEPENDENT))
    assert (found.checks[0].verdict, found.checks[0].cause) == (Verdict.DISAGREES, Cause.UNKNOWN)


CONFIDENT = wired(lambda m, x: m.head(x) * m.scale, head=lambda: nn.Linear(5, 2),
                  scale=lambda: nn.Parameter(torch.tensor([[1.0], [40.0], [1.0]])))  # fmt: skip


def test_a_gradient_below_the_threshold_leaves_a_row_as_it_is_and_the_verdict_says_so() -> None:
    """Captum takes gradients up to 1e-6 for zero; a row of which the model is certain is not attacked then."""
    x = {"x": noise(3, 5, dtype=torch.float64)}
    model: Any = CONFIDENT().double()
    with torch.no_grad():
        top, second = model(**x)[1].sort(descending=True).values.tolist()
        model.scale[1] *= 20 / (top - second)
    found = gradients(model, x, labels := model(**x).argmax(1).tolist())["x"].abs().amax(1)
    assert 0 < found[1] < 1e-6 < min(found[0], found[2])
    result = one(model, x, ca.FGSM(0.1), target=ClassIndex(tuple(labels)))
    assert result.linf.astype(bool).tolist() == [True, False, True]
    assert [result.checks[0].of_row(row).verdict.value for row in range(3)] == ["AGREES", "INCONCLUSIVE", "AGREES"]
    assert result.checks[0].of_row(1).cause is Cause.SATURATED
    whole = one(model, x, ca.FGSM(0.1, zero_threshold=0.0), target=ClassIndex(tuple(labels)))
    assert whole.linf.all()
    assert agree(whole)


DOUBTED: dict[str, tuple[Any, list[str], Cause]] = {
    "no gradient in a row": (
        wired(lambda m, x: m.a(torch.cat([x[:1] * 0, x[1:]])), a=lambda: nn.Linear(5, 3)), ["I", "A", "A"],
        Cause.NO_GRADIENT,
    ),
    "coupled rows": (
        wired(lambda m, x: m.a(x - x.mean(0)), a=lambda: nn.Linear(5, 3)), ["I", "I", "I"], Cause.ROWS_COUPLED,
    ),
    "random": (
        wired(lambda m, x: m.a(F.dropout(x, 0.5, True)), a=lambda: nn.Linear(5, 3)), ["I", "I", "I"],
        Cause.RANDOM_FORWARD,
    ),
    "not finite in a row": (
        wired(lambda m, x: m.a(x * torch.tensor([[1.0], [float("nan")], [1.0]])), a=lambda: nn.Linear(5, 3)),
        ["A", "I", "A"], Cause.NOT_FINITE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DOUBTED)
def test_what_no_attack_can_do_is_in_doubt(what: str) -> None:
    build, expected, cause = DOUBTED[what]
    attack, more = ca.FGSM(0.1), {} if what != "random" else {"seed": None}
    check = one(build(), {"x": noise(3, 5)}, attack, **more).checks[0]
    assert [check.of_row(row).verdict.value[0] for row in range(3)] == expected
    assert check.cause is cause


# Limits, refusals, and what is left behind.


@contextmanager
def refused(field: str, text: str) -> Iterator[None]:
    with pytest.raises(CutawayError) as failure:
        yield
    assert failure.value.field == field
    assert text in failure.value.message


REFUSED: tuple[tuple[Attack, Any, str, str], ...] = (
    (ca.FGSM(inputs=("z",)), None, "inputs", "'z'"),
    (ca.FGSM(masks={"x": np.full((1, 5), 2)}), None, "masks.by_input.x", "1 for elements"),
    (ca.FGSM(masks={"x": np.ones((1, 4))}), None, "masks.by_input.x", "[1, 5]"),
    (ca.FGSM(lower_bound=0.0), None, "lower_bound", "has values from"),
    (ca.FGSM(upper_bound=0.0), None, "upper_bound", "has values from"),
    (ca.FGSM(lower_bound=1.0, upper_bound=0.0), None, "lower_bound", "not below"),
    (ca.FGSM(targeted=True), ca.PredictedClass(), "targeted", "name it"),
    (ca.FGSM(of_probabilities=True), None, "of_probabilities", "no probabilities"),
    (ca.PGD(search=ca.MinParamPerturbation("epsilon", 1.0, 0.1)), None, "search.parameter", "radius"),
    (ca.FGSM(search=ca.MinParamPerturbation("epsilon", 0.1, 0.1)), None, "search.upper", "one step"),
    (ca.FGSM(search=ca.MinParamPerturbation("epsilon", 1.0, 1e-4)), None, "search.step", "1000"),
    (ca.PGD(search=ca.MinParamPerturbation("n_steps", 9, 0.5)), None, "search.step", "whole"),
    (ca.PGD(random_start=True, search=ca.MinParamPerturbation("radius", 1, 0.1)), None, "search.parameter", "begins"),
    (ca.FGSM(search=ca.MinParamPerturbation("epsilon", 1.0, 0.1)), ca.OutputSum(), "search", "no class"),
)


@pytest.mark.parametrize(("attack", "target", "field", "text"), REFUSED)
def test_what_makes_no_sense_is_refused(attack: Attack, target: Any, field: str, text: str) -> None:
    model = TWO()
    with untouched(model), refused(f"attacks[1].{field}", text):
        attacked(model, given(torch.float32), ca.FGSM(), attack, **({"target": target} if target else {}))


def test_ids_several_targets_and_inputs_without_a_gradient_are_refused() -> None:
    words = wired(lambda m, ids: m.a(m.words(ids).mean(1)), words=lambda: nn.Embedding(9, 4), a=lambda: nn.Linear(4, 3))
    with refused("attacks[0].inputs", "inputs_embeds"):
        attacked(words(), {"ids": torch.tensor([[1, 2], [3, 4], [5, 6]])}, ca.FGSM())
    with refused("target", "one loss"):
        attacked(TWO(), given(torch.float32), ca.FGSM(), target=ca.TopK(2))
    with refused("attacks[0]", "name in inputs only"):
        attacked(TWO(), given(torch.float32), ca.FGSM(), target=ca.Neuron("a", (0,)))
    with refused("attacks[0].pgd.norm", "use Linf"):
        flat = wired(lambda m, x: m.a(x[:, None]), a=lambda: nn.Linear(1, 3))
        attacked(flat(), {"x": torch.randn(3)}, ca.PGD(norm=ca.AttackNorm.L2))


def subject(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda inputs: model(**inputs))


def count(rows: list[int], inputs: Mapping[str, Tensor]) -> None:
    rows.append(len(inputs["image"]))


def test_a_dry_run_has_the_shapes_and_at_least_the_passes() -> None:
    model = subject(PICTURE())
    inputs = {"image": torch.rand(2, 3, 12, 12)}
    for mode in (*CHECKED, CheckMode.OFF):
        request = ca.InspectRequest(
            "m", attacks=(*ATTACKS[:3], replace(ATTACKS[3], search=ca.MinParamPerturbation("epsilon", 2.0, 0.1))),
            attributions=(ca.Saliency(),), check=CheckRequest(mode), seed=1,
        )  # fmt: skip
        inspect(model, request, inputs)  # which finds out what it can about the model
        plan = plan_request(model, request, inputs)
        expected = {name: entry.array.shape for name, entry in by_name(entries(estimate(plan))).items()}
        rows: list[int] = []
        with model.passes.watched_by(partial(count, rows)):
            result = inspect(model, request, inputs)
        assert {name: entry.array.shape for name, entry in by_name(entries(result)).items()} == expected
        assert sum(rows) - 2 <= sum(count for _, count in costs(plan))


def test_rows_that_do_not_fit_together_are_attacked_apart() -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = TWO()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            if len(x) > 4 and torch.is_grad_enabled() and x.requires_grad:
                raise torch.OutOfMemoryError("CUDA out of memory")
            output: Tensor = self.inner(x, y)
            return output

    six = {name: torch.cat([tensor, 2 * tensor]) for name, tensor in given(torch.float32).items()}
    result, whole = (
        one(model, six, ca.PGD(0.2, 0.05, 4), target=ca.PredictedClass()) for model in (Narrow().eval(), TWO())
    )
    assert agree(result)
    for name, values in whole.inputs.items():
        np.testing.assert_allclose(result.inputs[name], values, atol=1e-6)


def test_a_caller_who_hangs_up_ends_an_attack_between_two_passes() -> None:
    model = TWO()
    inspected, passes = subject(model), []
    inspected.passes.watcher = lambda _: passes.append(time.time())
    request = ca.InspectRequest("m", attacks=(ca.PGD(1.0, 0.1, 500),), check=CheckRequest(CheckMode.OFF))
    gone = Cancellation(hung_up=lambda: len(passes) > 20)
    with untouched(model), pytest.raises(ca.DeadlineExceeded):
        inspect(inspected, request, given(torch.float32), cancellation=gone)
    assert 20 < len(passes) < 30
