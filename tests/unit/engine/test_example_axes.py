"""Tensors inside a model whose examples are not along axis 0: `[time, batch, ...]`, `[layers, batch, ...]`, or none.

The shapes alone cannot tell: every case also has as many time steps as examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult, Verdict
from cutaway.contract.results.arrays import entries, examples_first
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.hooks.axes import row_axes
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import Cancellation
from cutaway.engine.planning.plan import plan_request
from tests.support.rounding import close

SHAPES = [(4, 4), (1, 3), (2, 5), (3, 1)]
"""Examples and time steps."""
MODES = [ca.CheckMode.SAME_PASS, ca.CheckMode.INDEPENDENT]


class SequenceFirst(nn.Module):
    """A text classifier as PyTorch's tutorials write it: token ids `[batch, time]`, and `[time, batch]` inside."""

    def __init__(self, *, flattens: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flattens = flattens
        self.words, self.rnn, self.head = nn.Embedding(12, 4), nn.LSTM(4, 5, num_layers=2), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        outputs, (hidden, _) = self.rnn(self.words(ids.T))
        returned = {"logits": self.head(hidden[-1] + outputs.mean(0)), "hidden": hidden}
        return {**returned, "all": outputs.flatten(0, 1)} if self.flattens else returned

    def after(self, words: Tensor) -> Tensor:
        """The logits from embedded words, `[time, batch, 4]`."""
        outputs, (hidden, _) = self.rnn(words)
        logits: Tensor = self.head(hidden[-1] + outputs.mean(0))
        return logits


def model(module: nn.Module | None = None) -> InspectedModel:
    chosen = module or SequenceFirst()
    return InspectedModel(chosen.double().eval(), lambda named: chosen(**named))


def texts(rows: int, steps: int) -> Tensor:
    return torch.randint(1, 12, (rows, steps), generator=torch.Generator().manual_seed(rows))


def ask(subject: InspectedModel, ids: Tensor, *attributions: ca.Attribution, **parts: Any) -> InspectResult:
    return inspect(subject, InspectRequest("m", {}, attributions=attributions, **parts), {"ids": ids})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reply_says_where_the_examples_are(shape: tuple[int, int]) -> None:
    """Each array that has them elsewhere is named with its axis; flattened steps and examples have no such axis. A
    function puts them first."""
    rows, steps = shape
    points = (ca.Point.INPUT, ca.Point.OUTPUT, ca.Point.GRAD_OUTPUT)
    got = ask(
        model(SequenceFirst(flattens=True)),
        texts(rows, steps),
        captures=(ca.Capture("words", at=points), ca.Capture("rnn")),
    )
    elsewhere = {f"capture:words@{point.value}": 1 for point in points}
    state = {f"capture:rnn@output:{path}": 1 for path in ("[0]", "[1][0]", "[1][1]")}
    flattened = {} if steps == 1 else {"all": None}
    assert got.example_axes == {"hidden": 1, **flattened, **elsewhere, **state}
    first = {entry.name: entry for entry in entries(examples_first(got))}
    assert {entry.example_axis for name, entry in first.items() if name not in flattened} == {0}
    assert first["hidden"].array.shape == (rows, 2, 5)
    assert np.array_equal(first["capture:words@output"].array, np.swapaxes(got.captures["words"].output, 0, 1))


def test_a_top_k_gradient_has_its_classes_behind_axis_0() -> None:
    """Gradients of several classes are `[time, k, batch, ...]`: the examples are on axis 2 there."""
    got = ask(model(), texts(3, 3), captures=(ca.Capture("words", at=ca.Point.GRAD_OUTPUT),), target=ca.TopK(2))
    assert got.captures["words"].grad_output.shape == (3, 2, 3, 4)
    assert got.example_axes["capture:words@grad_output"] == 2


@pytest.mark.parametrize(
    ("reduction", "left"),
    [
        (ca.Mean(axes=(0,)), 0),
        (ca.Norm(axes=(2,)), 1),
        (ca.Max(axes=(0, 2)), 0),
        (ca.TopElements(2, axis=0), 1),
        (ca.Mean(axes=(1,)), None),
        (ca.Max(axes=(-2, 0)), None),
        (ca.TopElements(2, axis=1), None),
    ],
    ids=str,
)
def test_time_can_be_reduced_and_examples_cannot(reduction: Any, left: int | None) -> None:
    subject, ids = model(), texts(4, 4)
    captures = (ca.Capture("words", reduce=reduction),)
    if left is None:
        with pytest.raises(ca.InvalidArgument, match="axis 1 is the batch") as refused:
            ask(subject, ids, captures=captures)
        assert refused.value.reason == "AXIS_RANGE"
        return
    got, whole = ask(subject, ids, captures=captures), ask(subject, ids, captures=(ca.Capture("words"),))
    assert got.example_axes.get("capture:words@output", 0) == left
    assert got.example_axes.get("positions:words@output", 0) == (left if isinstance(reduction, ca.TopElements) else 0)
    own = [ask(subject, ids[row : row + 1], captures=captures).captures["words"].output for row in range(4)]
    together = np.moveaxis(got.captures["words"].output, left, 0)
    assert np.allclose(together, [np.moveaxis(one, left, 0)[0] for one in own])
    assert whole.captures["words"].output.shape == (4, 4, 4)


def changed_words(module: SequenceFirst, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The logits by hand, after a change of the embedded words."""
    with torch.no_grad():
        return module.after(change(module.words(ids.T).clone()))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_edit_of_a_row_changes_that_example(shape: tuple[int, int]) -> None:
    """An edit that names rows, with slices of other axes, and one that mixes rows, are those by hand."""
    rows, steps = shape
    module, ids, last = SequenceFirst().double(), texts(rows, steps), shape[0] - 1

    def halved(words: Tensor) -> Tensor:
        words[:1, last] *= 0.5
        return words

    edit = ca.Scale("words", factor=0.5, rows=(last,), slices=(ca.Slice(0, 0, 1),))
    got = ask(model(module), ids, edits=(edit,)).predictions["logits"]
    assert close(got, changed_words(module, ids, halved), 200)
    order = [*range(1, rows), 0]
    mixed = ask(model(module), ids, edits=(ca.Mix("words", permutation=tuple(order), weight=0.25),))
    by_hand = changed_words(module, ids, lambda words: 0.25 * words + 0.75 * words[:, order])
    assert close(mixed.predictions["logits"], by_hand, 200)


def test_a_value_without_examples_has_no_rows_to_edit() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Linear(2, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.flat(ids.reshape(-1, 2)).reshape(len(ids), -1)

    x = torch.ones(2, 4, dtype=torch.float64)
    with pytest.raises(ca.InvalidArgument, match="none of its axes is the batch") as refused:
        ask(model(Flattened()), x, edits=(ca.Zero("flat", rows=(0,)),))
    assert refused.value.reason == "ROW_RANGE"


def integrated(module: SequenceFirst, ids: Tensor, classes: Sequence[int]) -> Tensor:
    """Integrated gradients at the embedded words by Gauss-Legendre with 50 nodes, by hand."""
    nodes, weights = np.polynomial.legendre.leggauss(50)
    end, start = module.words(ids.T).detach(), module.words(torch.zeros_like(ids).T).detach()
    total = torch.zeros_like(end)
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        point = (start + node * (end - start)).requires_grad_()
        (gradient,) = torch.autograd.grad(module.after(point)[range(len(ids)), classes].sum(), point)
        total += weight * gradient
    return total * (end - start)


def ablated(module: SequenceFirst, ids: Tensor, classes: Sequence[int]) -> Tensor:
    """The drop of each example's target without one element of its embedded words, by hand."""
    words, rows = module.words(ids.T).detach(), range(len(ids))
    drops = torch.zeros_like(words)
    with torch.no_grad():
        whole = module.after(words)[rows, classes]
        for step in range(words.shape[0]):
            for unit in range(words.shape[2]):
                without = words.clone()
                without[step, :, unit] = 0
                drops[step, :, unit] = whole - module.after(without)[rows, classes]
    return drops


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_methods_explain_examples_and_not_time_steps(shape: tuple[int, int], mode: ca.CheckMode) -> None:
    """Values by hand, in the axes of the layer, and every check agrees. Token sums belong to their tokens."""
    module, ids, classes = SequenceFirst().double(), texts(*shape), [row % 3 for row in range(shape[0])]
    words = module.words(ids.T).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(module.after(words)[range(len(ids)), classes].sum(), words)
    padding = {"ids": ca.TokenId(0)}
    cases: list[tuple[ca.Attribution, Tensor]] = [
        (ca.LayerIntegratedGradients(layer="words", baselines=padding), integrated(module, ids, classes)),
        (ca.LayerGradientXActivation(layer="words"), gradient * words.detach()),
        (ca.LayerActivation(layer="words"), words.detach()),
        (ca.LayerGradCam(layer="words"), (gradient.mean(0, keepdim=True) * words.detach()).sum(-1, keepdim=True)),
        (ca.LayerFeatureAblation(layer="words"), ablated(module, ids, classes)),
    ]
    asked = [method for method, _ in cases]
    got = ask(model(module), ids, *asked, target=ca.ClassIndex(tuple(classes)), check=ca.CheckRequest(mode))
    for number, (result, expected) in enumerate(zip(got.attributions, [values for _, values in cases])):
        assert np.allclose(result.values["words"], expected, rtol=1e-5, atol=1e-8), result.method  # nodes in float32
        assert {check.verdict for check in result.checks} == {Verdict.AGREES}, (number, result.method, result.checks)
        assert all(len(check.rows) == len(ids) for check in result.checks if check.rows)
        assert result.tokens is not None
        assert np.array_equal(result.tokens.ids, ids)
        assert np.allclose(result.tokens.values, expected.sum(-1).T, rtol=1e-5, atol=1e-8)
    named = {name: axis for name, axis in got.example_axes.items() if name.startswith("attribution:")}
    assert set(named.values()) == {1}
    assert len(named) == len(cases)


class Twin(nn.Module):
    """The same network with its steps before its rows inside, or behind them."""

    def __init__(self, *, sequence_first: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.sequence_first = sequence_first
        self.inner, self.head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        inner = self.inner(ids.transpose(0, 1) if self.sequence_first else ids)
        return self.head(torch.tanh(inner).mean(0 if self.sequence_first else 1))


SAMPLES = {"ids": torch.linspace(-1, 1, 5 * 12, dtype=torch.float64).reshape(5, 4, 3).numpy()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize(
    "asked",
    [
        ca.LayerConductance(layer="inner"),
        ca.LayerConductance(layer="inner", n_steps=7, quadrature=ca.Quadrature.RIEMANN_TRAPEZOID),
        ca.InternalInfluence(layer="inner"),
        ca.LayerGradientShap(layer="inner", baselines=SAMPLES, n_samples=4),
        ca.LayerFeatureAblation(layer="inner", baseline=0.5),
        ca.LayerFeaturePermutation(layer="inner"),
        ca.LayerGradientXActivation(layer="inner", metrics=(ca.SensitivityMax(),)),
        ca.LayerGradCam(layer="inner"),
        ca.LayerGradCam(layer="inner", channel_axis=2),
        ca.LayerIntegratedGradients(layer="inner", max_delta=1e-3),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_method_is_that_of_the_twin_whose_rows_come_first(asked: Any, rows: int, mode: ca.CheckMode) -> None:
    """Each method gives the values and verdicts that it gives for the same network with rows on axis 0."""
    x = torch.linspace(-1, 2, 60, dtype=torch.float64).reshape(5, 4, 3)[:rows].contiguous()
    behind, first = (
        ask(model(Twin(sequence_first=own)), x, asked, seed=5, check=ca.CheckRequest(mode)).attributions[0]
        for own in (True, False)
    )
    assert close(np.swapaxes(behind.values["inner"], 0, 1), torch.tensor(first.values["inner"]), 2000)
    assert [check.verdict for check in behind.checks] == [check.verdict for check in first.checks]
    assert {len(check.rows) for check in behind.checks} == {len(check.rows) for check in first.checks}
    if rows > 1:
        assert {check.verdict for check in behind.checks} <= {Verdict.AGREES, Verdict.NOT_APPLICABLE}


def test_the_layer_is_itself_again_afterwards() -> None:
    """No hook and no stand-in is left, also after a method that fails."""
    subject, ids = model(), texts(4, 4)
    before = dict(subject.tree.modules)
    ask(subject, ids, ca.LayerIntegratedGradients(layer="words"))
    failing = ca.LayerIntegratedGradients(layer="words", target=ca.ClassIndex((9,)))
    with pytest.raises(ca.InvalidArgument):
        ask(subject, ids, failing)
    assert subject.tree.modules == before
    assert all(not module._forward_hooks for module in subject.module.modules())


def test_requests_share_a_pass_along_the_axis_of_the_examples() -> None:
    """Captures and attributions of requests that ran together are those of each alone, and they did share."""
    subject, asked = model(), (ca.LayerGradientXActivation(layer="words"),)
    request = InspectRequest("m", {}, captures=(ca.Capture("words"), ca.Capture("rnn")), attributions=asked)
    batches = [texts(2, 3), texts(1, 3), texts(3, 3)]
    together = inspect_batch([plan_request(subject, request, {"ids": ids}) for ids in batches])
    for one, ids in zip(together, batches):
        assert isinstance(one, InspectResult)
        alone = inspect(subject, request, {"ids": ids})
        assert one.provenance.companions == 2
        assert one.example_axes == alone.example_axes
        for ours, theirs in zip(entries(one), entries(alone)):
            assert ours.name == theirs.name
            assert np.allclose(ours.array, theirs.array, rtol=1e-12, atol=1e-14), ours.name


@pytest.mark.parametrize(
    ("target", "where"),
    [(ca.OutputSum(output="hidden"), "target"), (ca.Neuron("words", (0, 0)), "target.neuron.module")],
    ids=["output", "neuron"],
)
def test_a_target_needs_its_examples_on_axis_0(target: ca.Target, where: str) -> None:
    """Also where there are as many layers, or steps, as examples, so that the shape fits."""
    with pytest.raises(ca.InvalidArgument, match="axis 0 is not the batch of 2, but axis 1 is") as refused:
        ask(model(), texts(2, 2), input_gradients=None, captures=(ca.Capture("head", at="grad_output"),), target=target)
    assert refused.value.reason == "TARGET_SHAPE"
    assert refused.value.field in (where, "target")


@pytest.mark.parametrize("method", [ca.LayerDeepLift, ca.LayerLRP])
def test_a_method_that_reads_axis_0_by_itself_is_refused(method: Any) -> None:
    class Floats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.act, self.head = nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.act(self.inner(ids.transpose(0, 1))).mean(0))

    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(2, 4, 3)
    with pytest.raises(ca.InvalidArgument, match="is not the batch, but axis 1 is") as refused:
        ask(model(Floats()), x, method(layer="inner"))
    assert refused.value.reason == "METHOD_INAPPLICABLE"


class OneSize(nn.Module):
    """A model that takes batches of three examples only, as some exported ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(ids.reshape(3, 2)))


class Squeezing(nn.Module):
    """A model that drops the axis of a single example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.inner(ids).squeeze()).reshape(-1, 2)


@pytest.mark.parametrize("module", [OneSize, Squeezing])
def test_batch_sizes_that_a_model_does_not_take_are_no_failure(module: Any) -> None:
    """The first axis of that size counts where the test cannot run, and a single example is not tested alone."""
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(3, 2)
    got = ask(model(module()), x, captures=(ca.Capture("inner"),))
    assert got.example_axes == {}
    assert got.captures["inner"].output.shape == (3, 4)


def test_a_caller_who_leaves_is_told_and_nothing_is_remembered() -> None:
    """A test that was cut short says nothing about the model: the next request runs it again."""
    subject, ids = model(), texts(2, 2)
    with pytest.raises(ca.DeadlineExceeded), subject.session(Cancellation(deadline=0.0)):
        row_axes(subject, {"ids": ids}, ["words"])
    with subject.session():
        assert row_axes(subject, {"ids": ids}, ["words"]).at_output("words") == {"": 1}


class Choosing(SequenceFirst):
    """Runs its network for a first word above 5, and answers nothing of it otherwise."""

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        return super().forward(ids) if ids[0, 0] > 5 else {"logits": self.head(ids[:, :1].double().expand(-1, 5))}


def test_a_module_that_did_not_run_is_looked_at_again() -> None:
    """Nothing was known of it from the inputs before, and its shapes cannot tell: as many steps as examples."""
    subject, other, ids = model(Choosing()), texts(4, 4), texts(4, 4)
    other[0, 0], ids[:, 0] = 1, 6
    ask(subject, other)
    assert ask(subject, ids, captures=(ca.Capture("words"),)).example_axes.items() >= {("capture:words@output", 1)}


class Turning(nn.Module):
    """Runs ``[time, batch]``, and mixes its examples, from three time steps on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        turns = ids.shape[1] > 2
        hidden = self.inner(ids.transpose(0, 1) if turns else ids)
        logits: Tensor = self.head((hidden - hidden.mean(1, keepdim=True)).mean(0) if turns else hidden.mean(1))
        return logits


def test_what_is_known_of_short_inputs_does_not_hold_for_long_ones() -> None:
    """Neither where the examples are, nor that calls may share a pass: one caller would get values of another."""
    subject, ids = model(Turning()), torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    asked = InspectRequest("m", {}, captures=(ca.Capture("inner"),))
    for steps, companions in ((2, 1), (3, 0)):
        parts = (ids[:1, :steps], ids[1:, :steps])
        outcomes = inspect_batch([plan_request(subject, asked, {"ids": part}) for part in parts])
        for outcome in outcomes:
            assert isinstance(outcome, InspectResult)
            assert outcome.provenance.companions == companions
            assert outcome.example_axes == ({} if steps == 2 else {"capture:inner@output": 1})


class Gate(nn.Module):
    """An expert that is given the rows whose first number is not far below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.expert, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, 0] > -50
        logits: Tensor = self.head(x.masked_fill(chosen[:, None], 0.0).index_put((chosen,), self.expert(x[chosen])))
        return logits


@pytest.mark.parametrize("method", [ca.LayerActivation, ca.LayerGradientXActivation, ca.LayerGradCam])
def test_a_layer_of_some_rows_has_no_axis_of_examples(method: Any) -> None:
    """Its attributions are those rows', and nobody may take the first for that of the first example."""
    x = torch.tensor([[1.0, 0.3, -0.4, 0.7], [-99.0, 0.5, 0.2, 0.9]], dtype=torch.float64)
    asked = InspectRequest("m", captures=(ca.Capture("expert"),), attributions=(method(layer="expert"),))
    result = inspect(model(Gate()), asked, {"x": x})
    (name,) = result.attributions[0].values
    assert result.attributions[0].values[name].shape[0] == 1
    found = {each for each, axis in result.example_axes.items() if axis is None}
    assert {each.partition(":")[0] for each in found} == {"attribution", "capture"}
