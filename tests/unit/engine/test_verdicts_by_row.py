"""Requests that are asked together get the checks that each gets alone: no row's verdict depends on its company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, InspectRequest, LayerAttribution
from cutaway.contract.results import Cause, Check, InspectResult, Verdict
from cutaway.engine import batching
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.planning.plan import RequestPlan, plan_request
from tests.matrix.asking import Places, at_places
from tests.support.checked_attributions import CHECKED, Build, noise, wired
from tests.support.reply_equality import differences
from tests.support.wrong_parts import Changed

ROUNDING = 1e-9
SIZES = (3, 3, 2, 1)
"""The rows of the requests that are asked together."""

MARKED = 1
"""Which of them has the row that something is wrong with; it is not its first one."""

MARK = 0.8125
"""The first element of that row."""


class Model(NamedTuple):
    """A network, one row of its inputs, and where it is looked into."""

    build: Build
    row: tuple[int, ...]
    places: Places

    def subject(self) -> InspectedModel:
        model = self.build().double()
        return InspectedModel(model, lambda tensors: model(**tensors))

    def inputs(self, rows: int, seed: int) -> Inputs:
        return {"x": noise(rows, *self.row, dtype=torch.float64, seed=seed)}

    def all_inputs(self) -> list[Inputs]:
        return [self.inputs(rows, seed) for seed, rows in enumerate(SIZES)]

    def marked(self) -> list[Inputs]:
        found = self.all_inputs()
        found[MARKED]["x"][1].reshape(-1)[0] = MARK
        return found


PERCEPTRON = Model(
    wired(lambda m, x: m.b(m.r(m.a(x))), a=lambda: nn.Linear(6, 8), r=nn.ReLU, b=lambda: nn.Linear(8, 3)),
    (6,),
    Places("a", "a", ca.Neuron("a", (1,))),
)

CONVOLUTIONS = Model(
    wired(
        lambda m, x: m.fc(m.flat(m.r2(m.c2(m.r1(m.c1(x)))))),
        c1=lambda: nn.Conv2d(1, 2, 3, padding=1), r1=nn.ReLU, c2=lambda: nn.Conv2d(2, 3, 3), r2=nn.ReLU,
        flat=nn.Flatten, fc=lambda: nn.Linear(12, 3),
    ),
    (1, 4, 4),
    Places("c2", "c1", ca.Neuron("c2", (0, 1, 1)), spread=("flat",)),
)  # fmt: skip


class Tokens(Model):
    """A network of token ids."""

    def inputs(self, rows: int, seed: int) -> Inputs:
        return {"x": torch.randint(1, 9, (rows, *self.row), generator=torch.Generator().manual_seed(seed))}


TOKENS = Tokens(
    wired(
        lambda m, x: m.head(m.mix(m.words(x)).tanh().mean(1)),
        words=lambda: nn.Embedding(9, 4), mix=lambda: nn.Linear(4, 4), head=lambda: nn.Linear(4, 3),
    ),
    (5,),
    Places("mix", "mix", ca.Neuron("mix", (1, 2)), "words"),
)  # fmt: skip

MODELS = {"perceptron": PERCEPTRON, "convolutions": CONVOLUTIONS, "tokens": TOKENS}


def every_method() -> Iterator[Any]:
    """All methods that apply to a model, with their parameters."""
    for name, model in MODELS.items():
        asked = at_places(model.places, model.inputs(1, 0))
        for number, attribution in enumerate(asked):
            noisy = "+noise" if attribution.noise else ""
            yield pytest.param(model, attribution, id=f"{name}-{type(attribution).__name__}{noisy}-{number}")


def request(attribution: Attribution, mode: CheckMode = CheckMode.SAME_PASS, **asked: Any) -> InspectRequest:
    return InspectRequest("m", attributions=(attribution,), check=CheckRequest(mode), seed=1, **asked)


def together(model: Model, question: InspectRequest, inputs: Sequence[Inputs]) -> list[Any]:
    subject = model.subject()
    return inspect_batch([plan_request(subject, question, each) for each in inputs])


def alone(subject: InspectedModel, question: InspectRequest, inputs: Inputs) -> Any:
    try:
        return inspect(subject, question, inputs)
    except ca.CutawayError as failure:
        return failure


def as_alone(
    model: Model, question: InspectRequest, inputs: Sequence[Inputs], subject: InspectedModel | None = None
) -> list[Any]:
    """The answers, which are those that each gets alone: verdicts, causes and texts too, and the numbers of checks.

    Alone is answered by ``subject``; by default by a model that nobody else has asked.
    """
    answers = together(model, question, inputs)
    expected = [alone(subject or model.subject(), question, each) for each in inputs]
    wrong = [
        f"{number}{difference}"
        for number, pair in enumerate(zip(answers, expected))
        for difference in [*differences(*pair, ROUNDING), *numbers_differ(*pair)]
    ]
    assert not wrong, "\n".join(wrong)
    return answers


def numbers_differ(one: Any, other: Any) -> Iterator[str]:
    for ours, theirs in zip(checks(one), checks(other)):
        for name in ("max_absolute_error", "max_relative_error", "cosine"):
            pair = getattr(ours, name), getattr(theirs, name)
            if pair[0] != pytest.approx(pair[1], rel=1e-6, abs=ROUNDING, nan_ok=True):
                yield f"{ours.compared}: {name} {pair}"


def checks(answer: Any) -> Sequence[Check]:
    return answer.attributions[0].checks if isinstance(answer, InspectResult) else ()


def outcomes(answers: Sequence[Any]) -> list[tuple[Verdict, Cause | None]]:
    """The worst verdict of each, and its cause."""
    worst = [answer.attributions[0].worst_check for answer in answers]
    return [(check.verdict, check.cause) for check in worst]


def were_joined(answers: Sequence[Any]) -> bool:
    return all(answer.provenance.companions == len(answers) - 1 for answer in answers)


AGREES: tuple[Verdict, Cause | None] = (Verdict.AGREES, None)


def only_marked(verdict: Verdict, cause: Cause | None) -> list[tuple[Verdict, Cause | None]]:
    return [(verdict, cause) if number == MARKED else AGREES for number in range(len(SIZES))]


@pytest.mark.parametrize(("model", "attribution"), [*every_method()])
def test_every_method_is_checked_as_alone(model: Model, attribution: Attribution) -> None:
    """Requests of one, two and three rows; where they are joined, both ways to check."""
    is_joined = method_of(attribution).batchable and not attribution.noise
    subject = model.subject()  # in which nothing is wrong: whoever asks first finds that out
    for mode in CHECKED if is_joined else CHECKED[:1]:
        answers = as_alone(model, request(attribution, mode), model.all_inputs(), subject)
        assert were_joined(answers) or not is_joined


BY_ROW: dict[str, tuple[Model, Attribution]] = {
    "Saliency": (PERCEPTRON, ca.Saliency()),
    "InputXGradient": (CONVOLUTIONS, ca.InputXGradient()),
    "IntegratedGradients": (PERCEPTRON, ca.IntegratedGradients(n_steps=40)),
    "FeatureAblation": (PERCEPTRON, ca.FeatureAblation()),
    "Occlusion": (PERCEPTRON, ca.Occlusion(windows={"x": (2,)})),
    "LayerActivation": (PERCEPTRON, ca.LayerActivation(layer="a")),
    "LayerGradCam": (CONVOLUTIONS, ca.LayerGradCam(layer="c1")),
    "LayerConductance": (PERCEPTRON, ca.LayerConductance(layer="a", n_steps=40)),
    "InternalInfluence": (PERCEPTRON, ca.InternalInfluence(layer="a", n_steps=40)),
    "LayerIntegratedGradients": (PERCEPTRON, ca.LayerIntegratedGradients(layer="a", n_steps=40)),
}


def is_marked(inputs: Tensor) -> Tensor:
    """Which rows of a batch, or of several copies of it, are marked."""
    return inputs.detach().reshape(len(inputs), -1)[:, 0] == MARK


def at_marked(rows: Tensor, tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (tensor.ndim - 1)), change(tensor), tensor)


@contextmanager
def wrong_for_marked(attribution: Attribution, values: Any = None, inputs: Any = None) -> Iterator[None]:
    """Captum is wrong for the marked row: in what it returns, or in the inputs that it runs."""
    captums: Any = getattr(attr, type(attribution).__name__)
    intact = captums.attribute

    def attribute(self: Any, given: tuple[Tensor, ...], **options: Any) -> Any:
        rows = is_marked(given[0])
        taken = tuple(at_marked(rows, each, inputs) for each in given) if inputs else given
        found = intact(self, taken, **options)
        if not values:
            return found
        if isinstance(found, tuple):
            return tuple(at_marked(rows, each, values) for each in found)
        return at_marked(rows, found, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captums, "attribute", attribute)
        yield


@pytest.mark.parametrize(("model", "attribution"), BY_ROW.values(), ids=BY_ROW)
@pytest.mark.parametrize("mode", CHECKED)
def test_a_wrong_row_is_its_own_requests(model: Model, attribution: Attribution, mode: CheckMode) -> None:
    """Captum is wrong about one row: its request disagrees, that row is named, and nobody else is told so."""
    with wrong_for_marked(attribution, values=lambda value: value * 1.5 + 0.1):
        answers = as_alone(model, request(attribution, mode), model.marked())
    assert were_joined(answers)
    verdicts = [answer.attributions[0].checks[0].verdict for answer in answers]
    assert verdicts == [outcome for outcome, _ in only_marked(Verdict.DISAGREES, Cause.UNKNOWN)]
    rows = [row.verdict for row in answers[MARKED].attributions[0].checks[0].rows]
    assert rows == [Verdict.AGREES, Verdict.DISAGREES, Verdict.AGREES]


@pytest.mark.parametrize("name", ["Saliency", "IntegratedGradients", "FeatureAblation"])
def test_a_small_fault_beside_large_values_is_seen(name: str) -> None:
    """A row is measured by its own values, and not by those of others, which are a million times as large."""
    model, attribution = BY_ROW[name]
    inputs = model.marked()
    inputs[0]["x"] *= 1e6
    with wrong_for_marked(attribution, values=lambda value: value * 1.001):
        answers = as_alone(model, request(attribution), inputs)
    assert were_joined(answers)
    assert answers[MARKED].attributions[0].checks[0].verdict is Verdict.DISAGREES
    assert answers[0].attributions[0].checks[0].verdict is not Verdict.DISAGREES


@pytest.mark.parametrize("name", ["Saliency", "IntegratedGradients", "FeatureAblation", "LayerActivation"])
def test_other_points_for_one_row_are_its_own_requests(name: str) -> None:
    """Captum runs another value of one row through the model than the method consists of."""
    model, attribution = BY_ROW[name]
    with wrong_for_marked(attribution, inputs=lambda x: x + 0.25):
        answers = as_alone(model, request(attribution), model.marked())
    assert were_joined(answers)
    assert outcomes(answers) == only_marked(Verdict.DISAGREES, Cause.OTHER_PASSES)


@pytest.mark.parametrize("name", ["IntegratedGradients", "LayerConductance"])
def test_passes_of_unknown_rows_are_judged_alone(name: str) -> None:
    """Captum runs a step too few for everybody: each is told of its own rows."""
    model, attribution = BY_ROW[name]
    captums: Any = getattr(attr, type(attribution).__name__)
    intact = captums.attribute
    with pytest.MonkeyPatch.context() as patch:
        fewer = lambda self, given, n_steps, **options: intact(self, given, n_steps=n_steps - 1, **options)  # noqa: E731
        patch.setattr(captums, "attribute", fewer)
        answers = as_alone(model, request(attribution), model.all_inputs())
    assert {cause for _, cause in outcomes(answers)} == {Cause.OTHER_PASSES}


@pytest.mark.parametrize("name", ["Saliency", "InputXGradient", "IntegratedGradients", "LayerConductance"])
def test_a_wrong_gradient_of_one_row_is_its_own_requests(name: str) -> None:
    """The model's backward pass is wrong for one row: the others, which ran with it, are not doubted."""
    model, attribution = BY_ROW[name]

    def wrong(m: Any, x: Tensor) -> Tensor:
        rows = is_marked(x)
        return m.inner(Changed.apply(x, lambda gradient: at_marked(rows, gradient, lambda each: each * 1.3)))

    faulty = model._replace(build=wired(wrong, inner=model.build))
    places = {"layer": f"inner.{attribution.layer}"} if isinstance(attribution, LayerAttribution) else {}
    asked = type(attribution)(**{**vars(attribution), **places})
    answers = as_alone(faulty, request(asked, target=ca.ClassIndex((1,))), faulty.marked())
    assert were_joined(answers)
    identities = [answer.attributions[0].checks[0] for answer in answers]
    behind = name == "LayerConductance"  # the layer is behind the fault
    expected = only_marked(*AGREES if behind else (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD))
    assert [(check.verdict, check.cause) for check in identities] == expected


ROWS: dict[str, tuple[str, Callable[[Tensor], Tensor], Cause]] = {
    "no number": ("InputXGradient", lambda row: row * torch.nan, Cause.NOT_FINITE),
    "no number on a path": ("IntegratedGradients", lambda row: row * torch.nan, Cause.NOT_FINITE),
    "the baseline": ("IntegratedGradients", torch.zeros_like, Cause.BASELINE_IS_INPUT),
    "nothing to ablate": ("FeatureAblation", torch.zeros_like, Cause.BASELINE_IS_INPUT),
}


@pytest.mark.parametrize(("name", "change", "cause"), ROWS.values(), ids=ROWS)
def test_a_row_that_cannot_be_judged_is_its_own_requests(
    name: str, change: Callable[[Tensor], Tensor], cause: Cause
) -> None:
    model, attribution = BY_ROW[name]
    inputs = model.marked()
    inputs[MARKED]["x"][1] = change(inputs[MARKED]["x"][1])
    answers = as_alone(model, request(attribution), inputs)
    assert were_joined(answers)
    assert outcomes(answers)[MARKED] == (Verdict.INCONCLUSIVE, cause)
    assert [verdict for verdict, _ in outcomes(answers)].count(Verdict.AGREES) == len(SIZES) - 1


def saturating(m: Any, x: Tensor) -> Tensor:
    return (m.b(torch.tanh(m.a(x))) * 80).softmax(1)


SATURATING = Model(wired(saturating, a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3)), (6,), PERCEPTRON.places)


@pytest.mark.parametrize("attribution", [ca.Saliency(), ca.LayerGradientXActivation(layer="a")], ids=["input", "layer"])
def test_a_saturated_row_is_its_own_requests(attribution: Attribution) -> None:
    """Whatever the values of the others are."""
    inputs = SATURATING.all_inputs()
    inputs[0]["x"] *= 1e-3
    inputs[2]["x"] *= 1e9
    found = outcomes(as_alone(SATURATING, request(attribution), inputs))
    assert {cause for _, cause in found} >= {None, Cause.SATURATED}


class Sequences(nn.Module):
    """A layer that returns ``[batch, 8, 4]``: as long as eight requests of one row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Linear(1, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(self.words(x.unsqueeze(-1)).tanh().mean(1)) * 1e3).softmax(1)


def test_a_sequence_as_long_as_the_batch_is_no_batch() -> None:
    """Rows of a layer are found on axis 0, whatever else has their number: a saturated one is not overlooked."""
    model = Model(Sequences, (8,), Places("words", "words", ca.Neuron("head", (1,))))
    inputs = [model.inputs(1, seed) for seed in range(8)]
    answers = as_alone(model, request(ca.LayerGradientXActivation(layer="words")), inputs)
    assert were_joined(answers)
    assert {*outcomes(answers)} == {(Verdict.INCONCLUSIVE, Cause.SATURATED)}


COARSE = Model(
    wired(lambda m, x: m.b(torch.sigmoid(m.a(x) * 30)), a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3)),
    (6,),
    PERCEPTRON.places,
)


@pytest.mark.parametrize("mode", CHECKED)
def test_too_few_steps_are_told_of_each_request(mode: CheckMode) -> None:
    """How much is missing, and how many steps help, is that of the own rows."""
    answers = as_alone(COARSE, request(ca.IntegratedGradients(n_steps=3), mode), COARSE.all_inputs())
    assert were_joined(answers)
    assert len({answer.attributions[0].checks[1].reason for answer in answers}) == len(SIZES)


def test_what_is_wrong_with_the_model_is_told_everybody() -> None:
    """A gradient that is wrong everywhere, and a rectifier that the method does not know."""
    scaled = wired(lambda m, x: m.inner(Changed.apply(x, lambda gradient: gradient * 1.2)), inner=PERCEPTRON.build)
    answers = as_alone(PERCEPTRON._replace(build=scaled), request(ca.Saliency()), PERCEPTRON.all_inputs())
    assert set(outcomes(answers)) == {(Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)}
    function = wired(lambda m, x: m.b(torch.relu(m.a(x))), a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3))
    answers = as_alone(PERCEPTRON._replace(build=function), request(ca.GuidedBackprop()), PERCEPTRON.all_inputs())
    assert {cause for _, cause in outcomes(answers)} == {Cause.FUNCTIONAL_NONLINEARITY}


def test_classes_and_baselines_of_their_own() -> None:
    """Requests that differ in nothing else are one computation; each row has its own class and baseline."""
    subject = PERCEPTRON.subject()
    asked = [
        request(
            ca.IntegratedGradients(n_steps=40, baselines={"x": number / 4}, target=ca.ClassIndex((number % 3,))),
            target=ca.ClassIndex((number % 2,)),
            input_gradients=(),
        )
        for number in range(len(SIZES))
    ]
    plans = [plan_request(subject, *each) for each in zip(asked, PERCEPTRON.all_inputs())]
    answers: list[Any] = inspect_batch(plans)
    assert {answer.provenance.forwards for answer in answers} == {3}  # the prediction, the path, the baselines
    expected = [alone(PERCEPTRON.subject(), *each) for each in zip(asked, PERCEPTRON.all_inputs())]
    assert [*differences(answers, expected, ROUNDING)] == []


def misbehaving(m: Any, x: Tensor) -> Tensor:
    """In a batch of five rows or more, a row sees its neighbour."""
    return m.inner(x + 0.5 * x.roll(1, 0) if len(x) > 4 else x)


def test_rows_that_depend_on_each_other_in_larger_batches_are_found() -> None:
    """The proof before batches are shared looks at three rows; what is joined is tested again at its own size."""
    model = PERCEPTRON._replace(build=wired(misbehaving, inner=PERCEPTRON.build))
    inputs = [model.inputs(1, seed) for seed in range(6)]
    answers = together(model, request(ca.Saliency()), inputs)
    assert [answer.provenance.companions for answer in answers] == [0] * 6


def by_function_for_marked(m: Any, x: Tensor) -> Tensor:
    """A batch with the marked row takes another way, with the same values."""
    hidden = m.a(x)
    return m.b(torch.relu(hidden) if is_marked(x).any() else m.r(hidden))


@pytest.mark.parametrize("attribution", [ca.GuidedBackprop(), ca.Deconvolution()], ids=["guided", "deconvolution"])
def test_what_ran_for_one_request_limits_no_other(attribution: Attribution) -> None:
    """A rectifier that Captum does not know runs for the batch of one row only: the others are explained without it."""
    build = wired(by_function_for_marked, a=lambda: nn.Linear(6, 8), r=nn.ReLU, b=lambda: nn.Linear(8, 3))
    model = PERCEPTRON._replace(build=build)
    found = outcomes(as_alone(model, request(attribution), model.marked()))
    assert [cause for _, cause in found] == [None, Cause.FUNCTIONAL_NONLINEARITY, None, None]


@pytest.mark.parametrize("attribution", [ca.Saliency(), ca.InternalInfluence(layer="c1", n_steps=4)])
def test_checks_that_have_no_room_together_are_split(attribution: Attribution, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined requests keep no more numbers than allowed, at inputs and layers; a request by itself always runs."""
    joined: list[int] = []
    intact = batching.joined

    def noted(plans: Sequence[RequestPlan]) -> RequestPlan:
        joined.append(len(plans))
        return intact(plans)

    monkeypatch.setattr(batching, "joined", noted)
    row = 2 * 16 if isinstance(attribution, ca.Saliency) else 6 * (16 + 32)
    monkeypatch.setattr(batching, "MAX_KEPT", 4 * row)
    as_alone(CONVOLUTIONS, request(attribution), CONVOLUTIONS.all_inputs())
    assert joined == [1, 1, 2]  # three rows, three, two and one
    monkeypatch.setattr(batching, "MAX_KEPT", 0)
    joined.clear()
    as_alone(CONVOLUTIONS, request(attribution), CONVOLUTIONS.all_inputs())
    assert joined == [1] * 4


def rounded_otherwise_in_batches(m: Any, x: Tensor) -> Tensor:
    y = m.b(torch.tanh(m.a(x)))
    return torch.nextafter(y, y + 1) if len(x) > 1 else y


def test_a_row_at_its_baseline_in_passes_of_several_sizes() -> None:
    """The first pass is everybody's, that at the baseline is not: what the two round otherwise is no jump."""
    build = wired(rounded_otherwise_in_batches, a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3))
    model = build()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    asked = [(ca.IntegratedGradients(n_steps=8), torch.zeros(1, 6)), (ca.Saliency(), noise(1, 6))]
    at_baseline, other = inspect_batch([plan_request(subject, request(one), {"x": x}) for one, x in asked])
    assert isinstance(at_baseline, InspectResult)
    assert at_baseline.provenance.companions == 1
    assert [check.cause for check in at_baseline.attributions[0].checks] == [Cause.BASELINE_IS_INPUT, None]
    assert isinstance(other, InspectResult)


# One row with a doubt of its own: the others keep their verdict.


def with_row(row: Tensor) -> Inputs:
    """Returns four sound rows and, as number 2, another one."""
    x = noise(5, 6, dtype=torch.float64).abs() + 0.1
    return {"x": torch.cat([x[:2], row.unsqueeze(0), x[2:4]])}


def roots(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.sqrt(m.a(x).abs() * x[:, :1].abs()))


OWN_DOUBTS: dict[str, tuple[Build, Attribution, Tensor, Cause]] = {
    "the baseline": (PERCEPTRON.build, ca.IntegratedGradients(n_steps=128), torch.zeros(6), Cause.BASELINE_IS_INPUT),
    "no gradient": (
        wired(lambda m, x: m.b(torch.relu(m.a(x) + 50 * x[:, :1]) * 1.0), a=lambda: nn.Linear(6, 8),
              b=lambda: nn.Linear(8, 3)),
        ca.Saliency(), torch.tensor([-99.0, 1, 1, 1, 1, 1]), Cause.NO_GRADIENT,
    ),
    "saturation": (
        wired(lambda m, x: (m.b(m.a(x)) + torch.tensor([80, 0, 0]) * torch.relu(x[:, :1] - 5)).softmax(1),
              a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3)),
        ca.Saliency(), torch.tensor([6.0, 1, 1, 1, 1, 1]), Cause.SATURATED,
    ),
    "values that are not finite": (
        wired(roots, a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(8, 3)),
        ca.Saliency(), torch.zeros(6), Cause.NOT_FINITE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(OWN_DOUBTS))
def test_a_doubt_of_one_row_is_no_other_rows(name: str, mode: CheckMode) -> None:
    """The batch has the worst verdict; row 2 has its cause, and the others agree."""
    build, asked, row, cause = OWN_DOUBTS[name]
    model = build().double()
    request = InspectRequest("m", attributions=(asked,), check=CheckRequest(mode), target=ca.ClassIndex((1,)))
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    check = inspect(subject, request, with_row(row.double())).attributions[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, cause)
    assert [(of_row.verdict, of_row.cause) for of_row in check.rows] == [
        (Verdict.INCONCLUSIVE, cause) if number == 2 else (Verdict.AGREES, None) for number in range(5)
    ]


# Rows of one request: each has the verdict that it gets alone.

GATE = torch.tensor([[0.5, 1, -1, 0.3], [-0.5, 1, -1, 0.3], [1, -2, 0.4, 0.6], [0, 0, 0, 0]])
"""The gate of row 1 is closed, and row 3 is the baseline."""

GATED = wired(
    lambda m, x: m.b(m.r(m.a(x) - 100 * (x[:, :1] < 0))),
    a=lambda: nn.Linear(4, 6),
    r=nn.ReLU,
    b=lambda: nn.Linear(6, 3),
)
AROUND = wired(
    lambda m, x: m.b(m.r(m.a(x) * 9)) + torch.relu(x[:, 1:2]) * 3, a=lambda: nn.Linear(4, 6), r=nn.Sigmoid,
    b=lambda: nn.Linear(6, 3),
)  # fmt: skip
JUMPING = wired(
    lambda m, x: m.b(torch.sigmoid(m.a(x) * 30)) + 9 * (x[:, :1] < -0.2), a=lambda: nn.Linear(4, 6),
    b=lambda: nn.Linear(6, 3),
)  # fmt: skip
OFF = wired(
    lambda m, x: m.b(m.r(m.a(x[:, :1]))), a=lambda: nn.Linear(1, 1, bias=False), r=nn.ReLU,
    b=lambda: nn.Linear(1, 3, bias=False),
)  # fmt: skip
"""Nothing of a row is left whose first number has another sign than the weight."""

LAYER_PATH = ca.LayerConductance(layer="a", n_steps=4)

OWN_VERDICTS: dict[str, tuple[Build, Attribution, set[Cause | None]]] = {
    "no gradient, guided": (GATED, ca.GuidedBackprop(), {None, Cause.NO_GRADIENT}),
    "no gradient, relevance": (OFF, ca.LRP(), {None, Cause.NO_GRADIENT}),
    "no gradient, neuron": (
        GATED, ca.NeuronGuidedBackprop(neuron=ca.Neuron("r", (1,))), {None, Cause.NO_GRADIENT},
    ),
    "no gradient, through a neuron": (
        GATED, ca.NeuronConductance(neuron=ca.Neuron("a", (1,)), n_steps=4), {None, Cause.NO_GRADIENT},
    ),
    "no gradient, layer": (
        GATED, ca.LayerIntegratedGradients(layer="a", n_steps=4), {None, Cause.NO_GRADIENT, Cause.NOTHING_CHANGED},
    ),
    "a layer that is bypassed": (AROUND, LAYER_PATH, {None, Cause.NOT_MOVED, Cause.TOO_FEW_STEPS}),
    "an operation without a rule": (
        GATED, ca.DeepLift(), {None, Cause.FUNCTIONAL_NONLINEARITY, Cause.BASELINE_IS_INPUT},
    ),
    "steps and jumps": (
        JUMPING, ca.IntegratedGradients(n_steps=4), {None, Cause.TOO_FEW_STEPS, Cause.DISCONTINUOUS},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "asked", "expected"), OWN_VERDICTS.values(), ids=OWN_VERDICTS)
def test_a_row_of_a_request_is_judged_as_alone(build: Build, asked: Attribution, expected: set[Cause | None]) -> None:
    model = build().double()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    x = GATE.double()
    whole, *rows = (
        inspect(subject, request(asked, target=ca.ClassIndex((0,))), {"x": part}).attributions[0].checks
        for part in (x, *x.split(1))
    )
    assert len(whole) == len(rows[0])
    found = [[(check.of_row(row).verdict, check.of_row(row).cause) for check in whole] for row in range(len(x))]
    assert found == [[(check.verdict, check.cause) for check in alone] for alone in rows]
    assert expected <= {cause for row in found for _, cause in row}
    for check in whole:
        outcomes = {(outcome.verdict, outcome.cause) for outcome in map(check.of_row, range(len(x)))}
        assert (check.verdict, check.cause) in outcomes
        assert check.verdict is not Verdict.AGREES or len(outcomes) == 1
