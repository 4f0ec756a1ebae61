"""Every kind of target: its value and gradients are those of one line a row, its explanations Captum's of that line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

import cutaway as ca
import cutaway.engine.execution.inspect as execution
from cutaway.adapters import TensorAdapter
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, LayerAttribution, Point, Target
from cutaway.contract.results import AttributionResult, InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods import captum_call as explaining
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.targets import resolve_for_output
from tests.support.checked_attributions import CHECKED, noise
from tests.support.worker_calls import ask as worker_ask
from tests.support.worker_calls import worker

ROWS = 3
RELATIVE = 1e-5


X = {"x": noise(ROWS, 2, 6, 6)}


class Split(nn.Module):
    """Two tensors by name."""

    def forward(self, h: Tensor) -> dict[str, Tensor]:
        return {"one": torch.tanh(h), "two": h * 2}


class Net(nn.Module):
    """Images to five logits, and what else targets are read from; smooth, so that nothing hangs on a kink.

    Args:
        returns: makes what the model returns of the logits and of the features before them.
    """

    def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3)
        self.split = Split()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.again = nn.Linear(3, 3)
        self.fc = nn.Linear(12, 5)
        self.silent = nn.Linear(2, 2)
        self.returns = returns

    def forward(self, x: Tensor) -> Any:
        halves = self.split(self.conv2(torch.tanh(self.conv1(x))))
        steps, _ = self.lstm((halves["one"] + halves["two"]).flatten(2).transpose(1, 2))
        features = self.again(torch.tanh(self.again(steps))).flatten(1)
        return self.returns(self.fc(features), features)


RETURNS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "classes": lambda logits, _: logits,
    "numbers": lambda logits, _: logits.square().sum(1),
    "maps": lambda logits, _: logits[:, :, None, None] * torch.linspace(1, 2, 6).reshape(2, 3),
    "names": lambda logits, features: {"logits": logits, "features": features, "best": logits.argmax(1)},
}  # fmt: skip


def net(returns: str = "classes") -> Net:
    return Net(RETURNS[returns]).eval()


def ask(model: nn.Module, inputs: Mapping[str, Tensor] = X, **asked: Any) -> InspectResult:
    """One request, by the engine itself."""
    subject = InspectedModel(model, lambda given: model(**given))
    return inspect(subject, ca.InspectRequest("m", **asked), dict(inputs))


Scalar = Callable[[Tensor, int], Tensor]
"""From one row of an output, and which row of the batch it is, to a number."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of target.

    Attributes:
        target: it.
        scalar: the same, written for one row.
        wrong: another target of the kind, which must not pass for it.
        returns: which model it is asked of.
        read: what the scalar is read from: an output's name, or a module's where ``inside``.
        inside: whether it is read from a module.
        first: which tensor of what the module returned.
    """

    target: Target
    scalar: Scalar
    wrong: Target
    returns: str = "classes"
    read: str = ""
    inside: bool = False
    first: Callable[[Any], Tensor] = lambda returned: returned

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        """[batch, ...], what the scalar is read from."""
        if not self.inside:
            returned = model(x)
            return returned[self.read] if self.read else returned
        calls: list[Tensor] = []
        place = model.get_submodule(self.read)
        handle = place.register_forward_hook(lambda *args: calls.append(self.first(args[2])))
        model(x)
        handle.remove()
        return calls[0]

    def scalars(self, model: nn.Module, x: Tensor) -> Tensor:
        """[batch], row by row; rows past the batch's are the same examples again, as on a path."""
        output = self.forward(model, x)
        return torch.stack([self.scalar(row, number % ROWS) for number, row in enumerate(output)])


BEST = net()(X["x"]).argsort(1, descending=True).tolist()
WORST = next(iter({*range(5)} - {each[0] for each in BEST}))
PLACES = ((0, 1, 2), (4, 0, 0), (2, 1, 1))
UNLIKE = torch.tensor([1.0, 2.0, 1.0])
WISHED, WEIGHTS, MAPS = noise(ROWS, 5, seed=7), noise(ROWS, 5, seed=8), noise(ROWS, 5, 2, 3, seed=9)


def entropy(row: Tensor, label: int) -> Tensor:
    return row.exp().sum().log() - row[label]


KINDS = {
    "predicted class": Kind(
        ca.PredictedClass(), lambda row, r: row[BEST[r][0]], ca.ClassIndex(tuple(each[1] for each in BEST))),
    "one class": Kind(ca.ClassIndex((2,)), lambda row, r: row[2], ca.ClassIndex((3,))),
    "a class each": Kind(ca.ClassIndex((4, 0, 2)), lambda row, r: row[(4, 0, 2)[r]], ca.ClassIndex((4, 2, 0))),
    "a named output": Kind(
        ca.ClassIndex((7,), output="features"), lambda row, r: row[7], ca.ClassIndex((7, 7, 6), output="features"),
        "names", "features"),
    "one position": Kind(
        ca.MultiIndex((PLACES[0],)), lambda row, r: row[PLACES[0]], ca.MultiIndex((PLACES[1],)), "maps"),
    "a position each": Kind(
        ca.MultiIndex(PLACES), lambda row, r: row[PLACES[r]], ca.MultiIndex(PLACES[::-1]), "maps"),
    "a position among classes": Kind(
        ca.MultiIndex(((1,),)), lambda row, r: row[1], ca.MultiIndex(((1,), (1,), (0,)))),
    "cross entropy": Kind(
        ca.CrossEntropy((0, 4, 1)), lambda row, r: entropy(row, (0, 4, 1)[r]), ca.CrossEntropy((0, 1, 4))),
    "cross entropy, one label": Kind(
        ca.CrossEntropy((3,)), lambda row, r: entropy(row, 3), ca.CrossEntropy((3,), ca.LossReduction.MEAN)),
    "mean cross entropy": Kind(
        ca.CrossEntropy((0, 4, 1), ca.LossReduction.MEAN), lambda row, r: entropy(row, (0, 4, 1)[r]) / ROWS,
        ca.CrossEntropy((0, 4, 1))),
    "squared error": Kind(
        ca.MeanSquaredError(WISHED), lambda row, r: (row - WISHED[r]).square().sum(),
        ca.MeanSquaredError(WISHED.flip(0))),
    "mean squared error": Kind(
        ca.MeanSquaredError(MAPS, ca.LossReduction.MEAN), lambda row, r: (row - MAPS[r]).square().sum() / MAPS.numel(),
        ca.MeanSquaredError(MAPS), "maps"),
    "squared error of numbers": Kind(
        ca.MeanSquaredError(WISHED[:, 0]), lambda row, r: (row - WISHED[r, 0]).square(),
        ca.MeanSquaredError(WISHED[:, 1]), "numbers"),
    "cotangent": Kind(ca.Cotangent(WEIGHTS), lambda row, r: row @ WEIGHTS[r], ca.Cotangent(WEIGHTS.roll(1, 1))),
    "cotangent of maps": Kind(
        ca.Cotangent(MAPS), lambda row, r: (row * MAPS[r]).sum(), ca.Cotangent(MAPS.flip(0)), "maps"),
    "a contrast of two classes": Kind(
        ca.Contrast(ca.ClassIndex((2,)), ca.ClassIndex((3,))), lambda row, r: row[2] - row[3], ca.ClassIndex((2,))),
    "a contrast of a class each": Kind(
        ca.Contrast(ca.ClassIndex((4, 0, 2)), ca.ClassIndex((1,))), lambda row, r: row[(4, 0, 2)[r]] - row[1],
        ca.Contrast(ca.ClassIndex((4, 2, 0)), ca.ClassIndex((1,)))),
    "a contrast with the predicted class": Kind(
        ca.Contrast(ca.PredictedClass(), ca.ClassIndex((WORST,))), lambda row, r: row[BEST[r][0]] - row[WORST],
        ca.PredictedClass()),
    "a contrast of positions": Kind(
        ca.Contrast(ca.MultiIndex(((1, 1, 1),)), ca.MultiIndex(PLACES)), lambda row, r: row[1, 1, 1] - row[PLACES[r]],
        ca.Contrast(ca.MultiIndex(((1, 1, 1),)), ca.MultiIndex(PLACES[::-1])), "maps"),
    "a contrast of sum and norm": Kind(
        ca.Contrast(ca.OutputSum(), ca.OutputNorm(1)), lambda row, r: row.sum() - row.abs().sum(), ca.OutputSum()),
    "a contrast in a named output": Kind(
        ca.Contrast(ca.ClassIndex((7,)), ca.ClassIndex((6,)), output="features"), lambda row, r: row[7] - row[6],
        ca.ClassIndex((7,), output="features"), "names", "features"),
    "a log-probability": Kind(
        ca.LogProbability(ca.ClassIndex((2,))), lambda row, r: row[2] - row.exp().sum().log(), ca.ClassIndex((2,))),
    "a log-probability of a class each": Kind(
        ca.LogProbability(ca.ClassIndex((4, 0, 2))), lambda row, r: row[(4, 0, 2)[r]] - row.exp().sum().log(),
        ca.LogProbability(ca.ClassIndex((4, 2, 0)))),
    "a log-probability of the predicted class": Kind(
        ca.LogProbability(ca.PredictedClass()), lambda row, r: row[BEST[r][0]] - row.exp().sum().log(),
        ca.PredictedClass()),
    "a log-probability at a position": Kind(
        ca.LogProbability(ca.MultiIndex(PLACES)), lambda row, r: row[PLACES[r]] - row[PLACES[r][:-1]].exp().sum().log(),
        ca.MultiIndex(PLACES), "maps"),
    "a log-probability in a named output": Kind(
        ca.LogProbability(ca.ClassIndex((7,)), output="features"), lambda row, r: row[7] - row.exp().sum().log(),
        ca.ClassIndex((7,), output="features"), "names", "features"),
    "sum": Kind(ca.OutputSum(), lambda row, r: row.sum(), ca.Cotangent(WEIGHTS.abs())),
    "sum of maps": Kind(ca.OutputSum(), lambda row, r: row.sum(), ca.Cotangent(MAPS.abs()), "maps"),
    "sum of a number": Kind(ca.OutputSum(), lambda row, r: row, ca.Cotangent(UNLIKE), "numbers"),
    "norm": Kind(ca.OutputNorm(), lambda row, r: row.square().sum().sqrt(), ca.OutputNorm(3)),
    "norm of order 1": Kind(ca.OutputNorm(1), lambda row, r: row.abs().sum(), ca.OutputSum()),
    "norm of order 3, of maps": Kind(
        ca.OutputNorm(3), lambda row, r: row.abs().pow(3).sum().pow(1 / 3), ca.OutputNorm(2), "maps"),
    "largest magnitude": Kind(ca.OutputNorm(float("inf")), lambda row, r: row.abs().max(), ca.OutputNorm()),
    "a number": Kind(ca.PredictedClass(), lambda row, r: row, ca.Cotangent(UNLIKE), "numbers"),
    "a number, as class 0": Kind(ca.ClassIndex((0,)), lambda row, r: row, ca.Cotangent(UNLIKE), "numbers"),
    "a number, at its only position": Kind(ca.MultiIndex(((),)), lambda row, r: row, ca.Cotangent(UNLIKE), "numbers"),
    "a neuron of a convolution": Kind(
        ca.Neuron("conv2", (1, 0, 1)), lambda row, r: row[1, 0, 1], ca.Neuron("conv2", (1, 1, 0)), read="conv2",
        inside=True),
    "a neuron of an LSTM": Kind(
        ca.Neuron("lstm", (2, 1)), lambda row, r: row[2, 1], ca.Neuron("lstm", (1, 2)), read="lstm", inside=True,
        first=lambda returned: returned[0]),
    "a neuron among tensors by name": Kind(
        ca.Neuron("split", (3, 0, 0)), lambda row, r: row[3, 0, 0], ca.Neuron("split", (3, 0, 1)), read="split",
        inside=True, first=lambda returned: returned["one"]),
    "a neuron of the first of two calls": Kind(
        ca.Neuron("again", (1, 2)), lambda row, r: row[1, 2], ca.Neuron("again", (1, 1)), read="again", inside=True),
}  # fmt: skip


def close(ours: Any, theirs: Any, relative: float = RELATIVE) -> bool:
    """Equal in shape, and within ``relative`` of the largest magnitude."""
    one, other = np.asarray(ours, np.float64), np.asarray(torch.as_tensor(theirs).detach(), np.float64)
    return one.shape == other.shape and bool(np.abs(one - other).max() <= relative * np.abs(other).max())


@pytest.mark.parametrize("name", KINDS)
def test_a_targets_value_and_gradients_are_those_of_one_line_a_row(name: str) -> None:
    """At the input, inside the model and at a parameter, where rows add up."""
    kind = KINDS[name]
    captures = (ca.Capture("conv1", at="grad_output"), ca.Capture(parameter="conv1.weight"))
    result = ask(net(kind.returns), target=kind.target, input_gradients=(), captures=captures)
    model, x, inside = net(kind.returns), X["x"].clone().requires_grad_(), list[Tensor]()
    handle = model.conv1.register_forward_hook(lambda *args: inside.append(args[2]))
    scalars = kind.scalars(model, x)
    handle.remove()
    at_input, at_conv, at_weight = torch.autograd.grad(scalars.sum(), (x, inside[0], model.conv1.weight))
    assert close(result.target_values, scalars)
    assert close(result.input_gradients["x"], at_input)
    assert close(result.captures["conv1"].grad_output, at_conv)
    assert close(result.parameter_gradients["conv1.weight"], at_weight)


def test_a_batch_of_one_may_have_a_number_without_axes() -> None:
    """An output of no axes belongs to the one example that there is; of three, to none."""
    model = Net(lambda logits, _: logits.square().sum()).eval()
    alone = {"x": X["x"][:1]}
    vector = ca.Cotangent(np.ones_like(ask(model, alone).predictions["output"]))  # of the output's own shape
    for target in (ca.PredictedClass(), ca.ClassIndex((0,)), ca.OutputSum(), ca.MultiIndex(((),)), vector):
        x = alone["x"].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x), x)
        result = ask(model, alone, target=target, input_gradients=())
        assert close(result.target_values, model(alone["x"]).reshape(1))
        assert close(result.input_gradients["x"], gradient)
        with pytest.raises(ca.InvalidArgument, match=r"TARGET_SHAPE \[target\]"):
            ask(model, target=target, input_gradients=())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_losses_are_pytorchs(reduction: str) -> None:
    """The shares of the examples sum to torch.nn's loss of the batch, and so do their gradients."""
    labels = (3, 1, 0)
    losses: list[tuple[Target, Callable[[Tensor], Tensor]]] = [
        (
            ca.CrossEntropy(labels, ca.LossReduction(reduction)),
            lambda output: nn.CrossEntropyLoss(reduction=reduction)(output, torch.tensor(labels)),
        ),
        (
            ca.MeanSquaredError(WISHED.numpy(), ca.LossReduction(reduction)),
            lambda output: nn.MSELoss(reduction=reduction)(output, WISHED),
        ),
    ]
    for target, loss in losses:
        model, x = net(), X["x"].clone().requires_grad_()
        expected = loss(model(x))
        at_input, at_weight = torch.autograd.grad(expected, (x, model.fc.weight))
        result = ask(net(), target=target, input_gradients=(), captures=(ca.Capture(parameter="fc.weight"),))
        assert result.target_values is not None
        assert close(result.target_values.sum(), expected)
        assert close(result.input_gradients["x"], at_input)
        assert close(result.parameter_gradients["fc.weight"], at_weight)


# The k largest classes.


def explanations(steps: int) -> tuple[Attribution, ...]:
    """One of each method that has a target."""
    return (
        ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=steps), ca.LayerGradCam(layer="conv1"),
        ca.LayerGradientXActivation(layer="conv1"),
    )  # fmt: skip


def same(ours: Any, theirs: Any) -> bool:
    """Equal to the bit, or neither there."""
    return ours is theirs or np.array_equal(ours, theirs)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_k_largest_classes_are_k_requests_in_one(k: int) -> None:
    """Gradients have one more axis behind the batch, a parameter's before it; explanations come k times. Each is, to
    the bit, what a request for that class brings."""
    inside = (ca.Capture("conv1", at=tuple(Point)), ca.Capture("again", at=("grad_input", "grad_output")))
    asked: dict[str, Any] = {
        "input_gradients": (),
        "captures": (*inside, ca.Capture(parameter="fc.weight"), ca.Capture(parameter="conv1.bias")),
        "attributions": (*explanations(8), ca.LayerActivation(layer="conv1")),
    }
    result = ask(net(), target=ca.TopK(k), **asked)
    assert result.targets is not None
    assert result.targets.tolist() == [each[:k] for each in BEST]
    assert result.input_gradients["x"].shape == (ROWS, k, 2, 6, 6)
    assert result.captures["conv1"].output.shape == (ROWS, 4, 4, 4)  # a value has no target
    assert result.captures["conv1"].grad_output.shape == (ROWS, k, 4, 4, 4)
    assert result.parameter_gradients["fc.weight"].shape == (k, 5, 12)
    explained = [each for each in result.attributions if each.method != "LayerActivation"]
    assert len(explained) == k * len(explanations(8))
    assert len(result.attributions) == len(explained) + 1
    for place in range(k):
        alone = ask(net(), target=ca.ClassIndex(tuple(each[place] for each in BEST)), **asked)
        assert same(result.targets[:, place], alone.targets)
        assert result.target_values is not None
        assert same(result.target_values[:, place], alone.target_values)
        assert same(result.input_gradients["x"][:, place], alone.input_gradients["x"])
        for name, gradient in alone.parameter_gradients.items():
            assert same(result.parameter_gradients[name][place], gradient)
        for name, capture in alone.captures.items():
            for ours, theirs in zip(result.captures[name].calls, capture.calls, strict=True):
                for point in (Point.GRAD_INPUT, Point.GRAD_OUTPUT):
                    assert list(ours.leaves[point]) == list(theirs.leaves[point])
                    for path, gradient in theirs.leaves[point].items():
                        assert same(ours.leaves[point][path][:, place], gradient)
        for ours_explained, theirs_explained in zip(explained[place::k], alone.attributions):
            assert_same(ours_explained, theirs_explained)


def assert_same(ours: AttributionResult, theirs: AttributionResult) -> None:
    assert (ours.method, ours.layer) == (theirs.method, theirs.layer)
    assert list(ours.values) == list(theirs.values)
    assert all(same(value, theirs.values[name]) for name, value in ours.values.items())
    for field in ("targets", "value_at_input", "value_at_baseline", "convergence_delta"):
        assert same(getattr(ours, field), getattr(theirs, field)), field
    assert [check.verdict for check in ours.checks] == [check.verdict for check in theirs.checks]


def test_a_class_whose_gradient_ends_on_the_way_is_nought_there() -> None:
    """Where only some of the k reach a place, the others' gradient is zero: no class is missing."""

    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.one(x) + 100, self.other(x)], 1)

    captures = (ca.Capture("one", at="grad_output"), ca.Capture("other", at="grad_output"))
    result = ask(Ways(), {"x": noise(ROWS, 2)}, target=ca.TopK(2), captures=captures)
    assert result.captures["one"].grad_output[:, :, 0].tolist() == [[1.0, 0.0]] * ROWS
    assert result.captures["other"].grad_output[:, :, 0].tolist() == [[0.0, 1.0]] * ROWS


# Explanations.


def by_captum(kind: Kind, asked: Attribution) -> Tensor:
    """``asked``, by Captum around a function that returns the scalars."""
    model = net(kind.returns)
    layer = (model.get_submodule(asked.layer),) if isinstance(asked, LayerAttribution) else ()
    method = getattr(attr, type(asked).__name__)(lambda x: kind.scalars(model, x), *layer)
    options: dict[str, Any] = {}
    if isinstance(asked, ca.IntegratedGradients):
        options = {"n_steps": asked.n_steps}
    found: Tensor = method.attribute(X["x"].clone().requires_grad_(), **options)
    return found


@pytest.mark.parametrize("name", KINDS)
def test_an_explanation_is_captums_of_that_scalar(name: str) -> None:
    """For every kind of target and every method: Captum's own answer about a function that returns the scalar, and the
    raw hooks agree."""
    kind = KINDS[name]
    result = ask(net(kind.returns), target=kind.target, attributions=explanations(16))
    for asked, ours in zip(explanations(16), result.attributions, strict=True):
        assert ours.checks[0].verdict is Verdict.AGREES, (ours.method, ours.checks)
        assert close(next(iter(ours.values.values())), by_captum(kind, asked)), ours.method
        assert close(ours.value_at_input, kind.scalars(net(kind.returns), X["x"]))


@pytest.mark.parametrize("name", KINDS)
def test_passes_of_their_own_agree_too(name: str) -> None:
    """The same in the mode that runs every pass again."""
    kind = KINDS[name]
    check = CheckRequest(CheckMode.INDEPENDENT)
    result = ask(net(kind.returns), target=kind.target, attributions=explanations(4), check=check)
    assert {got.method: got.checks[0].verdict for got in result.attributions} == all_say(Verdict.AGREES)


def all_say(verdict: Verdict) -> dict[str, Verdict]:
    return {type(asked).__name__: verdict for asked in explanations(4)}


@contextmanager
def captum_is_told(wrong: Target) -> Iterator[None]:
    """Captum explains ``wrong``, while all others believe what was asked."""

    def explain(question: AttributionProblem, forward: Callable[..., Tensor]) -> Values:
        with torch.no_grad():
            read = question.read(question.inputs)
        (chosen, *_) = resolve_for_output(wrong, question.target.source, read, question.rows)
        return explaining.explain(dataclasses.replace(question, target=chosen), forward)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "explain", explain)
        yield


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", KINDS)
def test_another_target_of_the_kind_is_never_missed(name: str, mode: CheckMode) -> None:
    """Captum is given another class, label, position, tensor or order on purpose: DISAGREES, from every method."""
    kind = KINDS[name]
    with captum_is_told(kind.wrong):
        result = ask(net(kind.returns), target=kind.target, attributions=explanations(4), check=CheckRequest(mode))
    assert {got.method: got.checks[0].verdict for got in result.attributions} == all_say(Verdict.DISAGREES)


@pytest.mark.parametrize("mode", CHECKED)
def test_the_k_largest_in_another_order_are_never_missed(mode: CheckMode) -> None:
    """Captum is given the largest class each time: the first agrees, the others do not."""
    with captum_is_told(ca.PredictedClass()):
        asked = (ca.Saliency(), ca.LayerGradCam(layer="conv1"))
        result = ask(net(), target=ca.TopK(3), attributions=asked, check=CheckRequest(mode))
    assert [str(got.checks[0].verdict) for got in result.attributions] == ["AGREES", "DISAGREES", "DISAGREES"] * 2


def test_an_explanation_may_have_a_target_of_its_own() -> None:
    """It goes before the request's, of which gradients stay."""
    own = KINDS["a neuron of a convolution"]
    asked = (ca.Saliency(absolute=False), ca.Saliency(absolute=False, target=own.target))
    result = ask(net(), target=ca.ClassIndex((1,)), input_gradients=(), attributions=asked)
    x = X["x"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(own.scalars(net(), x).sum(), x)
    assert same(result.attributions[0].values["x"], result.input_gradients["x"])
    assert close(result.attributions[1].values["x"], gradient)


# Targets that are none.

BAD: dict[str, tuple[Target, str, str, str]] = {
    "unknown output": (ca.OutputSum(output="logit"), "names", "OUTPUT_NOT_FOUND", "output"),
    "output of integers": (ca.OutputSum(output="best"), "names", "TARGET_SHAPE", ""),
    "predicted class of maps": (ca.PredictedClass(), "maps", "TARGET_SHAPE", "predicted_class"),
    "class of maps": (ca.ClassIndex((0,)), "maps", "TARGET_SHAPE", "class_index"),
    "class past the last": (ca.ClassIndex((5,)), "classes", "TARGET_RANGE", "class_index"),
    "class below the first": (ca.ClassIndex((0, 0, -1)), "classes", "TARGET_RANGE", "class_index"),
    "two classes for three rows": (ca.ClassIndex((0, 1)), "classes", "TARGET_MISMATCH", "class_index"),
    "no class": (ca.ClassIndex(()), "classes", "TARGET_MISMATCH", "class_index"),
    "class 1 of numbers": (ca.ClassIndex((1,)), "numbers", "TARGET_RANGE", "class_index"),
    "position with an axis too few": (ca.MultiIndex(((0, 1),)), "maps", "TARGET_SHAPE", "multi_index.indices[0]"),
    "position with an axis too many": (
        ca.MultiIndex(((0,), (0, 0), (0,))), "classes", "TARGET_SHAPE", "multi_index.indices[1]"),
    "position outside": (
        ca.MultiIndex(((0, 0, 0), (0, 0, 0), (4, 2, 0))), "maps", "TARGET_RANGE", "multi_index.indices[2]"),
    "position from the end": (ca.MultiIndex(((0, 0, -1),)), "maps", "TARGET_RANGE", "multi_index.indices[0]"),
    "two positions for three rows": (ca.MultiIndex(PLACES[:2]), "maps", "TARGET_MISMATCH", "multi_index"),
    "position of numbers": (ca.MultiIndex(((0,),)), "numbers", "TARGET_SHAPE", "multi_index.indices[0]"),
    "more classes than there are": (ca.TopK(6), "classes", "TARGET_RANGE", "top_k.k"),
    "largest of numbers": (ca.TopK(1), "numbers", "TARGET_SHAPE", "top_k"),
    "largest of maps": (ca.TopK(1), "maps", "TARGET_SHAPE", "top_k"),
    "label past the last": (ca.CrossEntropy((0, 5, 0)), "classes", "TARGET_RANGE", "cross_entropy"),
    "four labels for three rows": (ca.CrossEntropy((0,) * 4), "classes", "TARGET_MISMATCH", "cross_entropy"),
    "cross entropy of maps": (ca.CrossEntropy((0,)), "maps", "TARGET_SHAPE", "cross_entropy"),
    "cross entropy of numbers": (ca.CrossEntropy((0,)), "numbers", "TARGET_SHAPE", "cross_entropy"),
    "values for one row": (
        ca.MeanSquaredError(WISHED[:1]), "classes", "TARGET_SHAPE", "mean_squared_error.values"),
    "values of another shape": (ca.MeanSquaredError(WISHED), "maps", "TARGET_SHAPE", "mean_squared_error.values"),
    "vector of another shape": (ca.Cotangent(MAPS), "classes", "TARGET_SHAPE", "cotangent.tensor"),
    "neuron of what is never called": (ca.Neuron("silent", (0,)), "classes", "POINT_NOT_FOUND", "neuron.module"),
    "neuron with an axis too few": (ca.Neuron("conv2", (0, 0)), "classes", "TARGET_SHAPE", "neuron.index"),
    "neuron outside": (ca.Neuron("conv2", (4, 0, 0)), "classes", "TARGET_RANGE", "neuron.index"),
    "neuron from the end": (ca.Neuron("conv2", (0, 0, -1)), "classes", "TARGET_RANGE", "neuron.index"),
    "neuron of an unknown module": (ca.Neuron("conv3", (0,)), "classes", "MODULE_NOT_FOUND", "neuron.module"),
    "neuron of the model": (ca.Neuron("", (0,)), "classes", "MODULE_NOT_FOUND", "neuron.module"),
    "contrast with a class past the last": (
        ca.Contrast(ca.ClassIndex((0,)), ca.ClassIndex((5,))), "classes", "TARGET_RANGE", "contrast.other.class_index"),
    "contrast of losses": (
        ca.Contrast(ca.CrossEntropy((0,)), ca.ClassIndex((1,))), "classes", "INVALID_VALUE", "contrast.target"),
    "contrast of contrasts": (
        ca.Contrast(ca.OutputSum(), ca.Contrast(ca.OutputSum(), ca.OutputNorm())), "classes", "INVALID_VALUE",
        "contrast.other"),
    "contrast of two outputs": (
        ca.Contrast(ca.OutputSum(output="features"), ca.OutputSum()), "names", "INVALID_VALUE", "contrast.target"),
    "probability past the last class": (
        ca.LogProbability(ca.ClassIndex((5,))), "classes", "TARGET_RANGE", "log_probability.target.class_index"),
    "probability of a sum": (
        ca.LogProbability(ca.OutputSum()), "classes", "INVALID_VALUE", "log_probability.target"),
    "probability of a number": (ca.LogProbability(ca.ClassIndex((0,))), "numbers", "TARGET_SHAPE", "log_probability"),
    "probability with its output inside": (
        ca.LogProbability(ca.ClassIndex((0,), output="features")), "names", "INVALID_VALUE", "log_probability.target"),
    "two classes for three numbers": (ca.ClassIndex((0, 0)), "numbers", "TARGET_MISMATCH", "class_index"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_target_that_does_not_fit_is_refused_by_its_field(name: str) -> None:
    """The request's and an explanation's own; the request's also where nothing else needs it."""
    target, returns, reason, field = BAD[name]
    asked: tuple[tuple[dict[str, Any], str], ...] = (
        ({"target": target}, "target"),
        ({"target": target, "input_gradients": ()}, "target"),
        ({"target": ca.OutputSum(), "attributions": (ca.Saliency(target=target),)}, "attributions[0].target"),
    )
    needed = asked[target == ca.PredictedClass() :]  # the default, which is no wish by itself
    for wish, prefix in needed:
        with pytest.raises(ca.InvalidArgument) as caught:
            ask(net(returns), **wish)
        expected = f"{prefix}.{field}" if field else prefix
        assert (caught.value.reason, caught.value.field) == (reason, expected), caught.value


class Odd(nn.Module):
    """What it returns is no number a row: a class, or the batch on another axis."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.turned, self.head = nn.Identity(), nn.Identity(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.whole(x.argmax(1))
        self.turned(x.t())
        return self.head(x)


@pytest.mark.parametrize(("module", "index"), [("whole", ()), ("turned", (0,))])
def test_a_neuron_needs_numbers_in_rows(module: str, index: tuple[int, ...]) -> None:
    """A module that returns integers has no gradient, one whose axis 0 is not the batch no example's neuron."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(Odd(), {"x": noise(ROWS, 4)}, target=ca.Neuron(module, index))
    assert (caught.value.reason, caught.value.field) == ("TARGET_SHAPE", "target")


def test_a_target_that_nothing_leads_to_is_refused_where_gradients_are_asked_for() -> None:
    """A model that rounds: its value is there, a gradient is not."""
    model = Net(lambda logits, _: logits.detach().round()).eval()
    captures = (ca.Capture("conv1", at="grad_output"),)
    with pytest.raises(ca.FailedPrecondition) as caught:
        ask(model, target=ca.OutputSum(), captures=captures)
    assert (caught.value.reason, caught.value.field) == ("NOT_DIFFERENTIABLE", "target")
    assert close(ask(model, target=ca.OutputSum()).target_values, model(X["x"]).sum(1))


# Outputs that lie in each other, and the one that is explained.


class Pair(NamedTuple):
    """A named tuple inside of what a model returns."""

    left: Tensor
    right: Tensor


@dataclass
class Head:
    """A dataclass there."""

    logits: Tensor
    more: Any = None


class Returning(nn.Module):
    """Returns what ``wrap`` makes of its hidden values, its logits and its loss."""

    def __init__(self, wrap: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.a(x))
        logits = self.b(h)
        return self.wrap(h, logits, logits.logsumexp(1).mean())


SENT = torch.randn(2, 4, generator=torch.Generator().manual_seed(3)).double()


def returned(wrap: Callable[[Tensor, Tensor, Tensor], Any], labels: Sequence[str] = (), **asked: Any) -> InspectResult:
    rows = asked.pop("rows", SENT)
    return worker_ask(worker(TensorAdapter(Returning(wrap).eval(), labels=labels)), {"x": rows}, **asked)


def gradient_of(x: Tensor) -> Any:
    """What has arrived at ``x``."""
    return x.grad


NESTED: tuple[tuple[Callable[[Tensor, Tensor, Tensor], Any], dict[str, str]], ...] = (
    (lambda h, y, _: {"logits": y, "hidden": (h, 2 * h)}, {"hidden[0]": "h", "hidden[1]": "2h"}),
    (lambda h, y, _: {"logits": y, "deep": {"inner": {"h": h}}}, {'deep["inner"]["h"]': "h"}),
    (lambda h, y, _: {"logits": y, "pair": Pair(h, 2 * h)}, {"pair[0]": "h", "pair[1]": "2h"}),
    (lambda h, y, _: {"logits": y, "head": Head(y, [h])}, {"head.logits": "y", "head.more[0]": "h"}),
    (lambda h, y, _: Head(y, {"h": h}), {"output.logits": "y", 'output.more["h"]': "h"}),
    (lambda h, y, _: (y, {"h": [h, None, "text"]}), {"output[0]": "y", 'output[1]["h"][0]': "h"}),
    (lambda h, y, _: ImageClassifierOutput(logits=y, hidden_states=(h, 2 * h)), {"hidden_states[1]": "2h"}),
)  # fmt: skip


@pytest.mark.parametrize(("wrap", "names"), NESTED)
def test_tensors_inside_of_outputs_have_names_and_are_targets(wrap: Any, names: dict[str, str]) -> None:
    """Whatever container they lie in; each is returned, differentiated and explained as plain PyTorch does it."""
    model = Returning(wrap).eval()
    h = torch.tanh(model.a(SENT))
    values = {"h": h, "2h": 2 * h, "y": model.b(h)}
    for name, which in names.items():
        target = ca.MultiIndex(((1,),), output=name)
        got = returned(wrap, target=target, input_gradients=True, attributions=[ca.Saliency(absolute=False)])
        assert np.array_equal(got.predictions[name], values[which].detach())
        x = SENT.clone().requires_grad_()
        inner = torch.tanh(model.a(x))
        {"h": inner, "2h": 2 * inner, "y": model.b(inner)}[which][:, 1].sum().backward()
        np.testing.assert_allclose(got.input_gradients["x"], gradient_of(x), rtol=1e-12)
        np.testing.assert_allclose(got.attributions[0].values["x"], gradient_of(x), rtol=1e-12)
        assert got.attributions[0].verdict == "AGREES"


LABELS = ("one", "two", "three")


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("wrap", "labels"),
    [
        (lambda h, y, loss: {"loss": loss, "logits": y}, ()),
        (lambda h, y, loss: {"loss": loss, "logits": y, "hidden_states": (h, h)}, ()),
        (lambda h, y, loss: (loss, y), ()),
        (lambda h, y, loss: {"total_loss": y.sum(1), "logits": y}, ()),
        (lambda h, y, loss: {"loss": loss, "hidden": h, "logits": y}, LABELS),
        (lambda h, y, loss: {"hidden": h, "logits": y}, LABELS),
        (lambda h, y, loss: ImageClassifierOutput(loss=loss, logits=y, hidden_states=(h,)), ()),
        (lambda h, y, loss: y, LABELS),
    ],
)
def test_the_output_with_the_classes_is_explained_and_no_loss(wrap: Any, labels: Sequence[str], rows: int) -> None:
    """For one row as for several: class, gradient and attribution are those of the logits."""
    got = returned(wrap, labels, rows=SENT[:rows], input_gradients=True, attributions=[ca.Saliency(absolute=False)])
    model = Returning(wrap).eval()
    x = SENT[:rows].clone().requires_grad_()
    logits = model.b(torch.tanh(model.a(x)))
    best = logits.max(1)
    best.values.sum().backward()
    assert got.targets is not None
    assert got.targets.tolist() == best.indices.tolist()
    np.testing.assert_allclose(got.input_gradients["x"], gradient_of(x), rtol=1e-12)
    np.testing.assert_allclose(got.attributions[0].values["x"], gradient_of(x), rtol=1e-12)
    assert got.attributions[0].verdict == "AGREES"
    assert [each.index for each in got.classes] == (best.indices.tolist() if labels else [])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("wrap", "labels", "names"),
    [
        (lambda h, y, loss: {"loss": loss, "logits": y, "pooled": h}, (), "'logits', 'pooled'"),
        (lambda h, y, loss: (loss, y, h), (), "'output[1]', 'output[2]'"),
        (lambda h, y, loss: {"hidden": h, "left": y, "right": 2 * y}, LABELS, "'left', 'right'"),
    ],
)
def test_an_output_that_nothing_decides_must_be_named(wrap: Any, labels: Any, names: str, rows: int) -> None:
    """The message has those between which to decide; a request that explains nothing is answered."""
    assert len(returned(wrap, labels, rows=SENT[:rows]).predictions)
    for asked in ({"input_gradients": True}, {"attributions": [ca.Saliency()]}):
        with pytest.raises(ca.InvalidArgument, match=re.escape(names)) as caught:
            returned(wrap, labels, rows=SENT[:rows], **asked)
        assert (caught.value.reason, caught.value.field[-6:]) == ("OUTPUT_NOT_FOUND", "output")
    named = names.split("'")[1]
    target = ca.PredictedClass(output=named)
    assert returned(wrap, labels, rows=SENT[:rows], target=target, input_gradients=True).input_gradients


def test_a_loss_that_is_named_is_explained() -> None:
    got = returned(lambda h, y, loss: {"loss": loss, "logits": y}, rows=SENT[:1], target=ca.OutputSum(output="loss"))
    assert got.target_values is not None
    assert got.target_values.tolist() == got.predictions["loss"].reshape(1).tolist()
