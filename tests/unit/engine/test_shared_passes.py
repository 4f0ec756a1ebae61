"""Requests that are answered together are answered as if each were alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.engine.batching import Outcome, inspect_batch
from cutaway.engine.checks.row_independence import rows_independent
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation
from cutaway.engine.planning.plan import RequestPlan, plan_request
from cutaway.server.archive import builder, reader
from cutaway.server.worker.worker import Worker
from tests.conftest import ADAPTERS
from tests.support.checked_attributions import wired
from tests.support.reply_equality import differences
from tests.support.state_snapshot import untouched
from tests.support.zoo.architecture import Architecture
from tests.support.zoo.table import ZOO

EXACT = 1e-9
GRADIENTS = (ca.Point.GRAD_INPUT, ca.Point.GRAD_OUTPUT)
POINTS = tuple(ca.Point)
OFF = ca.CheckRequest(ca.CheckMode.OFF)
INDEPENDENT = ca.CheckRequest(ca.CheckMode.INDEPENDENT)


class Ask(NamedTuple):
    """One request of a batch: one that cannot be planned has its error for an outcome."""

    request: InspectRequest
    inputs: Inputs
    cancellation: Cancellation = NEVER_CANCELLED


def inspect_all(subject: InspectedModel, asks: Sequence[Ask]) -> list[Outcome]:
    """What a worker does with the requests that it received together."""
    outcomes: dict[int, Outcome] = {}
    plans: dict[int, RequestPlan] = {}
    for number, ask in enumerate(asks):
        try:
            plans[number] = plan_request(subject, *ask)
        except ca.CutawayError as failure:
            outcomes[number] = failure
    outcomes.update(zip(plans, inspect_batch(list(plans.values()))))
    return [outcomes[number] for number in range(len(asks))]


def R(**asked: Any) -> InspectRequest:
    """A question to a model that has no name here."""
    return InspectRequest("m", **asked)


def subject_of(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda tensors: model(**tensors), labels=("zero", "one", "two", "three", "four"))


def alone(subject: InspectedModel, ask: Ask) -> Outcome:
    try:
        return inspect(subject, ask.request, ask.inputs, cancellation=ask.cancellation)
    except BaseException as failure:
        return failure


def assert_as_alone(subject: InspectedModel, asks: Sequence[Ask], relative: float = EXACT) -> list[Outcome]:
    """All at once, each as it is alone; the model untouched."""
    with untouched(subject.module):
        answers = inspect_all(subject, asks)
    wrong = [
        f"{number}{each}"
        for number, (ask, answer) in enumerate(zip(asks, answers))
        for each in differences(answer, alone(subject, ask), relative)
    ]
    assert not wrong, "\n".join(wrong)
    return answers


def passes(answers: Sequence[Outcome]) -> list[tuple[int, int]]:
    """Forward and backward passes, of each."""
    return [
        (each.provenance.forwards, each.provenance.backwards) for each in answers if isinstance(each, ca.InspectResult)
    ]


NET = wired(
    lambda m, x: m.fc(m.flat(m.r2(m.c2(m.r1(m.c1(x)))))),
    c1=lambda: nn.Conv2d(1, 4, 3, padding=1), r1=nn.ReLU, c2=lambda: nn.Conv2d(4, 8, 3, padding=1),
    r2=lambda: nn.ReLU(inplace=True), flat=nn.Flatten, fc=lambda: nn.Linear(8 * 36, 5),
)  # fmt: skip

QUESTIONS: dict[str, InspectRequest] = {
    "values and gradients": R(captures=(ca.Capture("c1"), ca.Capture("r2", at=(ca.Point.OUTPUT, *GRADIENTS)))),
    "a glob": R(captures=(ca.Capture("c*", at=("input", "grad_input")),), input_gradients=()),
    "a slice": R(captures=(ca.Capture("r1", slices=(ca.Slice(1, 0, 2),)),), target=ca.ClassIndex((2,))),
    "rows of a capture": R(captures=(ca.Capture("c1", slices=(ca.Slice(0, 0, 1),)),)),
    "rows from the end": R(captures=(ca.Capture("c1", slices=(ca.Slice(-4, -1),)),)),
    "a reduction": R(captures=(ca.Capture("r1", reduce=ca.Mean((1,))),), input_gradients=(), target=ca.OutputSum()),
    "the largest": R(captures=(ca.Capture("c1", reduce=ca.TopElements(2, 1)),)),
    "another data type": R(captures=(ca.Capture("c1", data_type="float32"),)),
    "an operator": R(captures=(ca.Capture(op=":conv2d#0"),)),
    "the prediction": R(),
    "stops early": R(omit_predictions=True, captures=(ca.Capture("c1", call=0),)),
    "stops a little later": R(omit_predictions=True, captures=(ca.Capture("r1", call=0),)),
    "a norm": R(target=ca.OutputNorm(), input_gradients=()),
    "a loss": R(target=ca.CrossEntropy((1,)), input_gradients=()),
    "the mean of a loss": R(target=ca.CrossEntropy((1,), ca.LossReduction.MEAN), input_gradients=()),
    "no such module": R(captures=(ca.Capture("nope"),)),
    "no such class": R(target=ca.ClassIndex((9,)), input_gradients=()),
    "no such slice": R(captures=(ca.Capture("c1", slices=(ca.Slice(1, 0, 99),)),)),
    "no such call": R(captures=(ca.Capture("c1", call=3),)),
    "several classes": R(target=ca.TopK(2), input_gradients=()),
    "a neuron": R(target=ca.Neuron("c1", (0, 1, 1)), input_gradients=()),
    "an edit": R(edits=(ca.Zero("c1"),), compare=True),
    "a parameter": R(captures=(ca.Capture(parameter="fc.weight"),)),
    "a module and its gradient, explained": R(attributions=(ca.Saliency(), ca.InputXGradient())),
    "saliency of another class": R(attributions=(ca.Saliency(target=ca.ClassIndex((3,))),)),
    "a path": R(attributions=(ca.IntegratedGradients(n_steps=8),)),
    "a path from elsewhere": R(attributions=(ca.IntegratedGradients(n_steps=8, baselines={"x": 0.5}),)),
    "the same path, checked otherwise": R(attributions=(ca.IntegratedGradients(n_steps=8),), check=INDEPENDENT),
    "another path": R(attributions=(ca.IntegratedGradients(n_steps=6),)),
    "a path, unchecked": R(attributions=(ca.IntegratedGradients(n_steps=8),), check=OFF),
    "another path, unchecked": R(attributions=(ca.IntegratedGradients(n_steps=6),), check=OFF),
    "layers": R(attributions=(ca.LayerGradCam(layer="c2"), ca.LayerActivation(layer="c1"))),
    "a path through a layer": R(attributions=(ca.LayerConductance(layer="c2", n_steps=6),)),
    "a path of a layer": R(attributions=(ca.LayerIntegratedGradients(layer="c2", n_steps=6),)),
    "an influence": R(attributions=(ca.InternalInfluence(layer="c2", n_steps=6),)),
    "guided": R(attributions=(ca.GuidedBackprop(), ca.Deconvolution())),
    "a window": R(attributions=(ca.Occlusion(windows={"x": (1, 3, 3)}, strides={"x": (1, 3, 3)}),)),
    "a mask": R(attributions=(ca.FeatureAblation(masks={"x": np.arange(36).reshape(1, 1, 6, 6) // 9}),)),
    "drawn": R(attributions=(ca.FeaturePermutation(masks={"x": np.arange(36).reshape(1, 1, 6, 6) // 9}),), seed=1),
    "a difference": R(attributions=(ca.DeepLift(),)),
    "only if": R(attributions=(ca.IntegratedGradients(n_steps=8),), explain_if=ca.ExplainIf(probability_at_least=0.9)),
    "until it adds up": R(attributions=(ca.IntegratedGradients(n_steps=8, max_delta=1e-3),)),
}
"""Questions of every kind, which a batch may bring together."""


def companions(answers: Sequence[Outcome]) -> list[int]:
    """How many others shared the pass of each answer."""
    return [each.provenance.companions for each in answers if isinstance(each, ca.InspectResult)]


def numbers(seed: int, *shape: int) -> Inputs:
    return {"x": torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()}


def images(seed: int, rows: int = 1, size: int = 6) -> Inputs:
    return numbers(seed, rows, 1, size, size)


@pytest.mark.parametrize("seed", range(3))
def test_questions_of_every_kind_are_answered_as_alone(seed: int) -> None:
    """Whatever else is in the batch: other places, targets, methods, sizes, and questions that cannot be answered."""
    asked = [question for question in QUESTIONS.values() for _ in range(2)]
    random.Random(seed).shuffle(asked)
    asks = [Ask(question, images(number, 1 + number % 3 // 2)) for number, question in enumerate(asked)]
    assert_as_alone(subject_of(NET().double()), asks)


@pytest.mark.parametrize("name", list(QUESTIONS))
def test_each_question_is_answered_as_alone_among_its_likes(name: str) -> None:
    """Three of a kind, which share all that can be shared."""
    assert_as_alone(subject_of(NET().double()), [Ask(QUESTIONS[name], images(seed, 2)) for seed in range(3)])


@pytest.mark.parametrize("name", list(QUESTIONS))
def test_a_model_that_nobody_has_asked_answers_a_question_behind_another_kind(name: str) -> None:
    """What is found out about a model once, such as where a layer's channels are, is found for every request."""
    plain, question = Ask(R(), images(1)), Ask(QUESTIONS[name], images(2))
    _, found = inspect_all(subject_of(NET().double()), [plain, question])
    expected = alone(subject_of(NET().double()), question)
    assert type(found) is type(expected)
    if isinstance(found, ca.CutawayError):
        assert str(found) == str(expected)


def test_a_path_that_does_not_exist_is_refused_beside_a_capture_of_the_same_module() -> None:
    """Where requests capture different parts of a module, all of it is captured: each still gets its own error."""
    captures = (ca.Capture("c1"), ca.Capture("c1", path="[3]"))
    asks = [Ask(R(captures=(capture,)), images(seed)) for seed, capture in enumerate(captures)]
    answers = assert_as_alone(subject_of(NET().double()), asks)
    assert isinstance(answers[1], ca.CutawayError)
    assert answers[1].reason == "PATH_NOT_FOUND"


def test_a_batch_runs_one_forward_and_one_backward() -> None:
    """Other layers, targets and gradients in one batch are one pass: that is what batches are for."""
    names = ("a slice", "a glob", "a reduction", "a loss", "a norm")
    asks = [Ask(QUESTIONS[name], images(seed)) for seed, name in enumerate(names * 3)]
    answers = assert_as_alone(subject_of(NET().double()), asks)
    assert passes(answers) == [(1, 1)] * 15
    assert companions(answers) == [14] * 15


def test_paths_share_their_passes() -> None:
    """Eight paths of 64 steps are one pass of 512 rows, and not eight explanations one after another; and a row's class
    and baseline are its own."""
    paths = [
        ca.IntegratedGradients(n_steps=64, baselines={"x": number / 8}, target=ca.ClassIndex((number % 5,)))
        for number in range(8)
    ]
    asks = [Ask(R(attributions=(path,)), images(number)) for number, path in enumerate(paths)]
    answers = assert_as_alone(subject_of(NET().double()), asks)
    assert passes(answers) == [(1 + 1 + 1, 1)] * 8  # the prediction, the path, the baselines
    assert {check.verdict for each in answers for check in each.attributions[0].checks} == {ca.Verdict.AGREES}  # type: ignore[union-attr]


def test_only_what_is_asked_is_done_for_a_batch() -> None:
    """No graph without a gradient, no gradient of parameters, and forward stops where all of the batch may stop."""
    values = [Ask(R(captures=(ca.Capture("c1"),)), images(seed)) for seed in range(3)]
    stops = [Ask(QUESTIONS["stops early"], images(seed)) for seed in range(3)]
    subject = subject_of(NET().double())
    for _ in range(3):  # what a model is like is found out in the first batches
        inspect_all(subject, values)
        inspect_all(subject, stops)
    ran: list[str] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        ran.append(f"{module.out_channels} {output.requires_grad}")

    with ExitStack() as hooks:
        for name in ("c1", "c2"):
            hooks.callback(subject.module.get_submodule(name).register_forward_hook(note).remove)
        inspect_all(subject, values)
        assert ran == ["4 False", "8 False"]
        ran.clear()
        inspect_all(subject, stops)
        assert ran == ["4 False"]


class Coupled(nn.Module):
    """Rows depend on each other, or lie where they are not looked for; ``how`` says in which way."""

    def __init__(self, how: Callable[[Coupled, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.inner = nn.Identity()
        self.norm = nn.BatchNorm1d(6)
        self.mix = nn.Linear(6, 6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.how(self, x))


def normalised(model: Coupled, x: Tensor) -> Tensor:
    model.norm.train()
    return model.norm(x)


class Backwards(torch.autograd.Function):
    """Rows are mixed on the way back alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + gradient.sum(dim=0, keepdim=True)


COUPLED: dict[str, Callable[[Coupled, Tensor], Tensor]] = {
    "batch statistics": normalised,
    "the loudest of the batch": lambda m, x: m.inner(x) / x.abs().max(),
    "the mean of the batch": lambda m, x: m.inner(x) - x.mean(dim=0),
    "the last row": lambda m, x: m.inner(x) + x[-1:],
    "the number of rows": lambda m, x: m.inner(x) * len(x),
    "dropout": lambda m, x: m.inner(torch.dropout(x, 0.5, True)),
    "batch second": lambda m, x: m.inner(x.T).T,
    "all in one": lambda m, x: m.inner(x.reshape(-1)).reshape(x.shape),
    "two to a row": lambda m, x: m.inner(x.reshape(-1, 3)).reshape(x.shape),
    "rows sorted": lambda m, x: m.inner(x[x[:, 0].argsort()])[x[:, 0].argsort().argsort()],
    "rows turned": lambda m, x: m.inner(x.flip(0)).flip(0),
    "mixed on the way back": lambda m, x: Backwards.apply(m.inner(x)),
    "fails in company": lambda m, x: m.inner(x[:1].expand_as(x) if len(x) == 1 else x[: 1 - len(x)].reshape(99)),
}


@pytest.mark.parametrize("how", list(COUPLED))
def test_rows_that_do_not_keep_apart_do_not_meet(how: str) -> None:
    """Whoever shares a model with others is told about his own rows: where that cannot be proven, he is alone."""
    subject = subject_of(Coupled(COUPLED[how]).double())
    inputs = [numbers(seed, 1, 6) for seed in range(3)]
    assert_as_alone_or_random(how, subject, [Ask(R(input_gradients=()), each) for each in inputs])
    inside = R(captures=(ca.Capture("inner", at=POINTS),), input_gradients=())
    assert_as_alone_or_random(how, subject, [Ask(inside, each) for each in inputs])


def assert_as_alone_or_random(how: str, subject: InspectedModel, asks: Sequence[Ask]) -> None:
    if how == "dropout":  # no two runs are the same: but none is another's
        answers = inspect_all(subject, asks)
        assert passes(answers) == [(1, 1)] * 3
        assert companions(answers) == [0] * 3
        assert len({each.predictions["output"].tobytes() for each in answers}) == 3  # type: ignore[union-attr]
    else:
        assert_as_alone(subject, asks)


DECISIONS: dict[str, Callable[[Tensor], object]] = {
    "if": lambda x: (x > 1e6).all(),
    "float": lambda x: float(x.abs().max()) > 1e6,
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
}


@pytest.mark.parametrize("how", list(DECISIONS))
def test_a_model_that_decides_for_its_batch_shares_nothing(how: str) -> None:
    """What it would do for other numbers no example shows."""
    subject = subject_of(Coupled(lambda m, x: m.inner(x) if DECISIONS[how](m.mix(x)) else 2 * x).double())
    answers = inspect_all(subject, [Ask(R(), numbers(seed, 1, 6)) for seed in range(3)])
    assert companions(answers) == [0] * 3


def test_a_model_that_decides_by_its_masks_shares_passes() -> None:
    """As those of transformers do: masks are not numbers that it computes."""

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x.cumsum(1) if mask.all() else x.cumsum(1) * mask

    asks = [Ask(R(), {**numbers(seed, 1, 6), "mask": torch.ones(1, 6, dtype=torch.int64)}) for seed in range(3)]
    assert companions(assert_as_alone(subject_of(Masked().double()), asks)) == [2] * 3


def test_lengths_may_be_read() -> None:
    """A packed sequence tells Python how many rows have each step."""
    (signals,) = (each for each in ZOO if each.name == "gru")
    model = signals.build()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    with subject.session():
        assert rows_independent(subject, dict(signals.inputs), ())


def test_rows_sorted_inside_are_captured_alone() -> None:
    """Also where no key of the examples changes their order."""
    sorts = Coupled(lambda m, x: m.inner(x[(order := (m.mix(x)[:, 0] > 1e6).int().argsort(stable=True))])[order])
    inside, outside = R(captures=(ca.Capture("inner"),)), R(captures=(ca.Capture("fc"),))
    for asked, beside in ((inside, 0), (outside, 0), (R(), 2)):
        answers = inspect_all(subject_of(sorts.double()), [Ask(asked, numbers(seed, 1, 6)) for seed in range(3)])
        assert companions(answers) == [beside] * 3


@pytest.mark.parametrize("quiet", [0, 1, 3, 15])
def test_what_rows_do_for_rare_values_shows_when_they_meet(quiet: int) -> None:
    """Real rows are compared for the first two times that requests meet, and then at the 4th, the 16th and so on."""
    subject = subject_of(Coupled(lambda m, x: m.inner(x) * (1 + (x > 1e3).any())).double())
    rows = [numbers(seed, 1, 6) for seed in range(3)]
    for _ in range(quiet):
        assert companions(assert_as_alone(subject, [Ask(R(), each) for each in rows])) == [2] * 3
    loud = [rows[0], {"x": rows[1]["x"] * 1e4}, rows[2]]
    for _ in range(2):
        assert companions(assert_as_alone(subject, [Ask(R(), each) for each in loud])) == [0] * 3


def test_masks_that_cut_the_batch_keep_requests_apart() -> None:
    """A model that cuts its batch to the longest row returns other shapes in other company."""

    def cut(model: Any, x: Tensor, mask: Tensor) -> Tensor:
        longest = int(mask.sum(dim=1).max())
        return model.fc((model.inner(x[:, :longest]) * mask[:, :longest, None]).sum(dim=1))

    subject = subject_of(wired(cut, inner=nn.Identity, fc=lambda: nn.Linear(3, 5))().double())
    asks = []
    for length in (4, 2, 3):
        mask = (torch.arange(4) < length).long()[None]
        asks.append(Ask(R(captures=(ca.Capture("inner"),)), {**numbers(length, 1, 4, 3), "mask": mask}))
    assert_as_alone(subject, asks)


class TwoHeads(nn.Module):
    """Two outputs; what stands before one of them the other does not see."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"left": self.left(x), "right": self.right(x)}


def test_targets_in_other_outputs_do_not_mix() -> None:
    """A gradient that does not arrive is told as such, and an explanation is of the output that it was asked of."""
    subject = subject_of(TwoHeads().double())
    captures = (ca.Capture("left", at=POINTS), ca.Capture("right", at=POINTS))
    asks = []
    for seed, output in enumerate(("left", "right", "", "right", "left")):
        inputs = numbers(seed, 1, 4)
        target = ca.ClassIndex((1,), output=output)
        asks.append(Ask(R(captures=captures, target=target, input_gradients=()), inputs))
        asks.append(Ask(R(attributions=(ca.Saliency(target=target),), check=OFF), inputs))
        asks.append(Ask(R(attributions=(ca.Saliency(target=target),)), inputs))
    assert_as_alone(subject, asks)


def test_a_layer_whose_rows_lie_elsewhere_is_explained_alone() -> None:
    """Even where the batch happens to be as long as its first axis."""

    def turned(model: Any, x: Tensor) -> Tensor:
        return model.fc(model.inner(x.T).T)

    subject = subject_of(wired(turned, inner=nn.Identity, fc=lambda: nn.Linear(3, 5))().double())
    request = R(attributions=(ca.LayerActivation(layer="inner"), ca.LayerGradientXActivation(layer="inner")), check=OFF)
    inputs = [numbers(seed, 1, 3) for seed in range(3)]
    assert_as_alone(subject, [Ask(request, each) for each in inputs])


def test_a_model_that_fails_for_one_row_answers_the_others() -> None:
    """Also where it exits: one request never harms another."""

    def picky(model: Any, x: Tensor) -> Tensor:
        if bool((x > 90).any()):
            raise SystemExit("too bright")
        return model.fc(x.flatten(1))

    subject = subject_of(wired(picky, fc=lambda: nn.Linear(36, 5))().double())
    asks = [Ask(R(input_gradients=()), images(seed)) for seed in range(4)]
    asks[2].inputs["x"][0, 0, 0, 0] = 99
    answers = inspect_all(subject, asks)
    kinds = [ca.InspectResult, ca.InspectResult, ca.InvalidArgument, ca.InspectResult]
    assert [type(each) for each in answers] == kinds
    del asks[2], answers[2]
    assert not [each for ask, answer in zip(asks, answers) for each in differences(answer, alone(subject, ask), EXACT)]


def test_a_deadline_is_its_own_requests() -> None:
    """Whose time is up is told so, and the others are answered."""
    asks = [
        Ask(R(input_gradients=()), images(seed), Cancellation(until)) for seed, until in enumerate((None, 1.0, 4e9))
    ]
    answers = assert_as_alone(subject_of(NET().double()), asks)
    assert [type(each) for each in answers] == [ca.InspectResult, ca.DeadlineExceeded, ca.InspectResult]


def test_other_shapes_and_data_types_are_other_batches() -> None:
    """Inputs that do not stack are never stacked."""
    flexible = wired(lambda m, x: m.fc(x.mean(dim=(2, 3)).to(m.fc.weight.dtype)), fc=lambda: nn.Linear(1, 5))
    inputs = [images(1), images(2, size=7), {"x": images(3)["x"].float()}, images(4), images(5, size=7)]
    assert_as_alone(subject_of(flexible().double()), [Ask(R(input_gradients=()), each) for each in inputs])


@pytest.mark.parametrize("architecture", ZOO, ids=lambda each: each.name)
def test_every_module_of_the_zoo_is_shown_as_alone(architecture: Architecture) -> None:
    """Four points of every module that fires, one row a request, in one batch; whatever lies along axis 0 there."""
    model = architecture.build()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    rows = len(next(iter(architecture.inputs.values())))
    asks = []
    for row in range(rows):
        inputs = {name: tensor[row : row + 1] for name, tensor in architecture.inputs.items()}
        target = ca.ClassIndex((architecture.target[row],), output=architecture.output)
        asks.append(Ask(R(captures=(ca.Capture("**", at=POINTS),), target=target), inputs))
        asks.append(Ask(R(target=target, attributions=_methods(inputs)), inputs))
    assert_as_alone(subject, asks, relative=1e-8)


def _methods(inputs: Inputs) -> tuple[ca.Attribution, ...]:
    floating = tuple(name for name, tensor in inputs.items() if tensor.is_floating_point())
    return (ca.Saliency(inputs=floating), ca.IntegratedGradients(inputs=floating, n_steps=5)) if floating else ()


def test_a_model_whose_rows_depend_on_each_other_says_so() -> None:
    """Several rows of such a model are answered with a warning; one row, which has no company, is not."""
    subject = subject_of(Coupled(COUPLED["the mean of the batch"]).double())
    rows = numbers(0, 3, 6)
    inspect_all(subject, [Ask(R(), rows), Ask(R(), rows)])  # where two meet, it is found out
    several, one = (
        [each.code for each in inspect(subject, R(), {"x": rows["x"][:count]}).warnings] for count in (3, 1)
    )
    assert several == [ca.WarningCode.ROWS_NOT_INDEPENDENT]
    assert one == []
    assert not inspect(subject_of(NET().double()), R(), images(1, rows=3)).warnings


def test_rows_are_looked_at_when_a_model_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From its example, before anybody waits: the log says where calls will not share a batch."""
    for adapter, proven in (("Apart", True), ("Together", False)):
        caplog.clear()
        path = builder.build(
            model=adapter.lower(), adapter=f"{ADAPTERS / 'company_adapter.py'}:{adapter}", weights=None, options={},
            batch_size=8, max_batch_delay_ms=1, workers=1, response_timeout_s=60, destination=tmp_path,
        )  # fmt: skip
        reader.unpack(path, tmp_path / adapter)
        Worker.load(tmp_path / adapter, device="cpu")
        assert ("not proven" in caplog.text) is not proven


class AtAKink(nn.Module):
    """Like any model with a unit that this very row leaves at its kink: rounding, which is another in another batch,
    opens it or does not."""

    def __init__(self, row: torch.Tensor) -> None:
        super().__init__()
        self.at = row.sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounding = 1e-12 * (len(x) - 1.5)
        return torch.relu(x.sum(dim=1, keepdim=True) - self.at + rounding) + x[:, :1]


def test_a_unit_that_rounding_turns_over_is_no_dependence() -> None:
    """Where company changes a gradient by rounding alone, at one row and not at others, nobody is told that rows
    depend on each other; requests are answered one by one all the same, each as alone."""
    rows = numbers(0, 2, 6)
    subject = subject_of(AtAKink(rows["x"][0]).double())
    asks = [Ask(R(input_gradients=("x",)), rows) for _ in range(2)]
    together = inspect_all(subject, asks)
    assert [each.provenance.forwards for each in together if isinstance(each, ca.InspectResult)] == [1, 1]
    assert not inspect(subject, R(), rows).warnings


class Bag(nn.Module):
    """Takes ids only: no input has a gradient."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.embed, self.read, self.normalised = nn.Embedding(9, 4), nn.Linear(4, 3), normalised
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.read(self.embed(ids).mean(1))
        return found / found.std(0, correction=0).add(1) if self.normalised else found


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("captured", [(), (("embed", ca.Point.OUTPUT),)], ids=["predictions", "a capture"])
def test_rows_of_ids_share_a_pass_if_they_keep_apart(normalised: bool, captured: Any) -> None:
    """Also where nothing is captured, so that there is no gradient to compare."""
    subject = subject_of(Bag(normalised).double())
    with subject.session():
        assert rows_independent(subject, {"ids": torch.tensor([[1, 8, 2, 0]])}, captured) is not normalised


class TwoReads(nn.Module):
    """The second output has the values of the first, and the gradients of the whole batch."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"own": x.square(), "shared": Backwards.apply(x.square())}


@pytest.mark.parametrize("source", ["own", "shared"])
def test_rows_are_independent_where_the_target_reads(source: str) -> None:
    """Gradients of the output that is asked for are compared, and not those of another."""
    subject = subject_of(TwoReads())
    with subject.session():
        assert rows_independent(subject, numbers(0, 2, 3), (), source) is (source == "own")


@pytest.mark.parametrize(("model", "independent"), [(nn.Tanh(), True), (nn.Softmax(dim=0), False)])
def test_rows_of_nothing_but_zeros_are_varied_too(model: nn.Module, independent: bool) -> None:
    """Other rows are made of the first one: of zeros too, or nothing would be proven."""
    subject = InspectedModel(model, lambda tensors: model(tensors["x"]))
    with subject.session():
        assert rows_independent(subject, {"x": torch.zeros(2, 3)}, ()) is independent


def test_a_sort_that_is_called_by_name_is_seen_and_harms_no_pass() -> None:
    """The first pass of a model is watched too."""
    model = Coupled(lambda m, x: m.inner(x[torch.sort(input=m.mix(x)[:, 0]).indices])).double()
    assert isinstance(alone(subject_of(model), Ask(R(), numbers(0, 3, 6))), ca.InspectResult)
