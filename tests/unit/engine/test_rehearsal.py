"""Tests of a model run before anybody asks: the first explanation costs what the second does, and is judged as ever."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import cutaway as ca
from cutaway.contract.errors import DeadlineExceeded
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause, InputSpec, InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.checks.row_independence import distant_rows
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.proofs import text_of
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation
from cutaway.engine.passes.findings import retested
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.targets import ResolvedTarget, identity
from cutaway.engine.planning.plan import plan_request
from cutaway.engine.rehearsal import Question, rehearsals, rehearse
from tests.support.checked_attributions import noise
from tests.support.faults import convolutions, layers, pooled
from tests.support.small_models import Tokens
from tests.support.wrong_parts import COUPLED, DRAWS, scaled

IMAGES = {"x": noise(1, 3, 8, 8)}
ROWS = {"x": noise(1, 8)}
AGREES = (Verdict.AGREES, None)


class Subject(InspectedModel):
    """A model, and the number of passes that it has run, of tests too."""

    def __init__(self, module: nn.Module, inputs: Sequence[InputSpec] = ()) -> None:
        super().__init__(module, self._counted, inputs)
        self.ran = 0

    def _counted(self, tensors: dict[str, Any]) -> Any:
        self.ran += 1
        return self.module(**tensors)

    def rehearse(self, example: Inputs) -> None:
        for question in rehearsals(self, example):
            rehearse(self, question, NEVER_CANCELLED)

    def ask(self, asked: Attribution, inputs: Inputs) -> InspectResult:
        return inspect(self, ca.InspectRequest("m", attributions=(asked,)), inputs)

    def verdict(self, asked: Attribution, inputs: Inputs) -> tuple[Verdict, Cause | None]:
        check = self.ask(asked, inputs).attributions[0].checks[0]
        return check.verdict, check.cause

    def runs(self, asked: Attribution, inputs: Inputs) -> int:
        before = self.ran
        assert self.verdict(asked, inputs) == AGREES
        return self.ran - before

    def costs(self, asked: Attribution, inputs: Inputs) -> tuple[int, int]:
        """The passes of the first explanation, and of the second: of one row, as some rows need more than others."""
        return self.runs(asked, inputs), self.runs(asked, inputs)


def image_net() -> nn.Module:
    return convolutions(lambda m, x: pooled(m, torch.tanh(m.b(torch.tanh(m.a(x))))))()


def tokens(rows: int, seed: int, length: int = 6) -> Inputs:
    ids = torch.randint(1, 20, (rows, length), generator=torch.Generator().manual_seed(seed))
    return {"ids": ids, "weight": noise(rows, length, seed=seed)}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    "asked",
    [
        *(ca.Saliency(), ca.InputXGradient()),
        *(ca.IntegratedGradients(n_steps=steps) for steps in (3, 4)),
        ca.Occlusion(windows={"x": (3, 4, 4)}, strides={"x": (3, 4, 4)}),
    ],
    ids=lambda asked: f"{type(asked).__name__}{getattr(asked, 'n_steps', '')}",
)
def test_the_first_explanation_costs_what_the_second_does(asked: Attribution, rows: int) -> None:
    """In passes, at inputs that are not the example, and in batches of several rows."""
    subject = Subject(image_net())
    subject.rehearse(IMAGES)
    first, second = subject.costs(asked, {"x": noise(rows, 3, 8, 8, seed=5)})
    assert first == second


@pytest.mark.parametrize(
    "asked",
    [
        *(ca.LayerGradCam(layer="b"), ca.LayerGradientXActivation(layer="a"), ca.LayerActivation(layer="a")),
        *(ca.IntegratedGradients(n_steps=steps) for steps in (20, 50)),
    ],
    ids=lambda asked: f"{type(asked).__name__}{getattr(asked, 'n_steps', '')}",
)
def test_the_first_explanation_of_one_row(asked: Attribution) -> None:
    """At any layer, and with any number of steps up to the default; of many steps, a test of one row is little."""
    subject = Subject(image_net())
    subject.rehearse(IMAGES)
    first, second = subject.costs(asked, {"x": noise(1, 3, 8, 8, seed=5)})
    assert first - second == (2 if isinstance(asked, ca.IntegratedGradients) else 0)
    assert subject.runs(asked, {"x": noise(1, 3, 8, 8, seed=6)}) == second


def test_other_token_ids_are_each_tried_once() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [9, 9, 9, 9]])
    assert distant_rows({"ids": ids})["ids"].tolist() == [[4, 3, 2, 1], [1, 2, 0, 0]]


@pytest.mark.parametrize(("n_steps", "more"), [(32, 0), (600, 2)])
def test_the_first_explanation_of_many_modules(n_steps: int, more: int) -> None:
    """A test of the inputs themselves, which costs Python for each module, is little beside several passes only."""
    many = partial(nn.Sequential, *(nn.Identity() for _ in range(501)))
    subject = Subject(layers(lambda m, x: m.b(torch.tanh(m.many(m.a(x)))), many=many)())
    asked = ca.IntegratedGradients(n_steps=n_steps)
    rehearse(subject, Question([asked], ROWS), NEVER_CANCELLED)
    first, second = subject.costs(asked, {"x": noise(1, 8, seed=5)})
    assert first - second == more


@pytest.mark.parametrize(
    "asked",
    [
        *(ca.LayerIntegratedGradients(layer="words", n_steps=8), ca.LayerGradientXActivation(layer="words")),
        *(ca.Saliency(), ca.FeatureAblation(), ca.LayerGradCam(layer="words")),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_the_first_explanation_of_tokens(asked: Attribution) -> None:
    """Also where gradients end at an embedding."""
    subject = Subject(Tokens())
    subject.rehearse(tokens(1, seed=4))
    first, second = subject.costs(asked, tokens(1, seed=5))
    assert first == second


def test_few_steps_and_tokens_are_tested_before_many() -> None:
    """A large model has no time for all: a path of few steps, and one of a short text, come before the default's."""
    subject = Subject(Tokens(), (InputSpec("ids", "int64", (-1, -1)), InputSpec("weight", "float32", (-1, -1))))
    paths = [
        (one.n_steps, question.inputs["ids"].shape[1])
        for question in rehearsals(subject, tokens(1, seed=4, length=30))
        for one in question.attributions
        if isinstance(one, ca.IntegratedGradients)
    ]
    default = paths.index((50, 30))
    assert {(16, 1), (16, 16), (16, 30), (16, 64)} <= {*paths[:default]}
    assert {(16, 128), (16, 256)} <= {*paths[default:]}


@pytest.mark.parametrize("length", [3, 20, 200, 600])
def test_the_first_explanation_of_a_text_of_another_length(length: int) -> None:
    """A test holds for lengths up to a power of two; where the model says that a length is free, others are tested."""
    subject = Subject(Tokens(), (InputSpec("ids", "int64", (-1, -1)), InputSpec("weight", "float32", (-1, -1))))
    subject.rehearse(tokens(1, seed=4))
    asked = ca.LayerIntegratedGradients(layer="words", n_steps=8)
    first, second = subject.costs(asked, tokens(1, 5, length))
    assert first == second


def of_the_input(key: str) -> bool:
    """Whether a proof is about the gradient at the input: at a layer behind a fault, it is right."""
    return "_suspicion" in key and "('x')" in key


WRONG = {
    "backward": (layers(lambda m, x: m.b(torch.tanh(scaled(1.3)(m.a(x))))), ROWS, Cause.WRONG_BACKWARD),
    "rows": (layers(lambda m, x: m.b(COUPLED["the batch's mean subtracted"](m.a(x)))), ROWS, Cause.ROWS_COUPLED),
    "random": (layers(lambda m, x: m.b(torch.tanh(m.a(x)) * (1 + DRAWS["torch"](m)))), ROWS, Cause.RANDOM_FORWARD),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_rehearsal_finds_is_found_again(fault: str) -> None:
    """A fault costs the caller its tests, as ever, and is never taken for sound; nothing of it is kept."""
    build, inputs, cause = WRONG[fault]
    subject = Subject(build())
    subject.rehearse(inputs)
    asked = ca.IntegratedGradients(n_steps=8)
    batch = {"x": noise(4, 8, seed=7)}
    assert subject.verdict(asked, batch) == Subject(build()).verdict(asked, batch)
    assert subject.verdict(asked, batch)[1] == cause
    test = {"rows": "_DependentRows", "random": "_random_forward"}.get(fault)
    assert not any(test in key if test else of_the_input(key) for key in subject.proofs.sound)


def wrong_of_small_inputs() -> nn.Module:
    """A wrong backward pass that larger inputs do not show."""

    def wiring(m: Any, x: Tensor) -> Any:
        h, is_small = m.a(x), x.detach().abs().amax() < 0.9
        return m.b(torch.tanh(torch.where(is_small, scaled(1.5)(h), h)))

    return layers(wiring)()


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        *((ca.IntegratedGradients(n_steps=16), rows) for rows in (1, 3)),
        *((method(layer="a", n_steps=32), 3) for method in (ca.LayerIntegratedGradients, ca.LayerConductance)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Attribution) else str(value),
)
def test_many_steps_test_their_own_inputs(asked: Attribution, rows: int) -> None:
    """A fault that the example cannot show is found where the first caller's inputs show it, and no process takes the
    model for sound again, for quick methods neither."""
    subject = Subject(wrong_of_small_inputs())
    rehearse(subject, Question([asked], {"x": noise(rows, 8)}), NEVER_CANCELLED)
    later = outliving(subject, subject.module)
    small, wrong = {"x": 0.3 * noise(3, 8)[:rows]}, (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)
    assert subject.verdict(asked, small) == later.verdict(asked, small) == wrong
    quick = ca.LayerGradientXActivation(layer="a") if hasattr(asked, "layer") else ca.InputXGradient()
    assert outliving(later, subject.module).verdict(quick, small) == wrong


def test_a_test_that_shows_nothing_proves_nothing() -> None:
    """At an example whose gradient is zero everywhere, a wrong backward is as right as any: it is tested again."""

    def wiring(m: Any, x: Tensor) -> Any:
        return m.b(torch.relu(scaled(1.3)(m.a(x)) * (x.mean(dim=1, keepdim=True) > 50)))

    subject = Subject(layers(wiring)())
    subject.rehearse({"x": torch.zeros(1, 8)})
    assert not any(map(of_the_input, subject.proofs.sound))
    large = {"x": 100 + noise(1, 8)}
    assert subject.verdict(ca.Saliency(), large) == (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)


def outliving(subject: Subject, module: nn.Module) -> Subject:
    """The same model in another process, which knows what the first has proven."""
    other = Subject(module)
    other.proofs.sound, other.proofs.faulty = {*subject.proofs.sound}, {*subject.proofs.faulty}
    other.proofs.axes = json.loads(json.dumps(subject.proofs.axes))
    return other


@pytest.mark.parametrize("asked", [ca.Saliency(), ca.LayerGradCam(layer="a")], ids=["input", "layer"])
def test_another_process_does_not_prove_again(asked: Attribution) -> None:
    """What a caller's tests have proven holds for the next process."""
    first = Subject(image_net())
    assert first.ask(asked, IMAGES).timings.proof_ms > 0
    second = outliving(first, image_net())
    assert second.ask(asked, IMAGES).timings.proof_ms == 0


def test_a_proof_is_withdrawn() -> None:
    """A test that is repeated on later inputs and finds something then: no process takes the model for sound again."""
    is_wrong = {"now": False}
    build = layers(lambda m, x: m.b(torch.tanh(scaled(1.3 if is_wrong["now"] else 1.0)(m.a(x)))))
    first = Subject(build())
    assert first.verdict(ca.Saliency(), ROWS) == AGREES
    is_wrong["now"] = True
    found = [first.verdict(ca.Saliency(), ROWS)[1] for _ in range(3)]
    assert found[-1] is Cause.WRONG_BACKWARD
    assert [key for key in first.proofs.faulty if "_suspicion" in key]
    assert outliving(first, build()).verdict(ca.Saliency(), ROWS)[1] is Cause.WRONG_BACKWARD


def test_hooks_of_others_are_not_those_of_another_process() -> None:
    """What was proven of a model with hooks that are not ours holds for this process."""
    subject = Subject(image_net())
    handle = subject.module.get_submodule("a").register_forward_hook(lambda *_: None)
    subject.rehearse(IMAGES)
    assert not any("checks.model_properties" in key for key in subject.proofs.sound)
    assert subject.runs(ca.Saliency(), IMAGES) == subject.runs(ca.Saliency(), IMAGES)
    handle.remove()


@pytest.mark.parametrize("pause", range(1, 12, 2))
def test_a_rehearsal_that_gives_way_leaves_no_trace(pause: int) -> None:
    """Ended at any pass, also inside of a test, it has found nothing; what was proven before stays, and the rest is
    tested later."""
    subject = Subject(layers(lambda m, x: m.b(torch.tanh(scaled(1.3)(m.a(x)))))())
    with pytest.raises(DeadlineExceeded):
        rehearse(subject, Question([ca.Saliency()], ROWS), Cancellation(hung_up=lambda: subject.ran >= pause))
    assert not any(map(of_the_input, subject.proofs.sound))
    assert not subject.proofs.rehearses
    assert subject.verdict(ca.Saliency(), ROWS) == (Verdict.INCONCLUSIVE, Cause.WRONG_BACKWARD)


def test_a_test_that_was_ended_has_found_nothing() -> None:
    """Whatever it takes its end for: a fault of a custom function, say, that could not be tested."""
    subject = Subject(image_net())
    problem = AttributionProblem(subject, ca.Saliency(), IMAGES, ("x",), target=ResolvedTarget("output", identity))

    def cannot_run(problem: AttributionProblem) -> str:
        return "a fault" if problem.model.cancellation.is_cancelled else ""

    with subject.cancelled_by(Cancellation(hung_up=lambda: True)), pytest.raises(DeadlineExceeded):
        retested(problem, cannot_run)
    assert not retested(problem, cannot_run)


@pytest.mark.parametrize("module", ["uncalled", "failing"])
def test_what_cannot_be_asked_is_passed_over(module: str) -> None:
    """A layer that never runs, and a model that takes one row only: the other questions are rehearsed."""

    def wiring(m: Any, x: Tensor) -> Any:
        if module == "failing" and len(x) > 1:
            raise ValueError("one row, please")
        return m.b(torch.tanh(m.a(x)))

    subject = Subject(layers(wiring, c=lambda: nn.Linear(8, 8))())
    subject.rehearse(ROWS)
    assert subject.runs(ca.Saliency(), ROWS) == subject.runs(ca.Saliency(), ROWS)


def test_rows_that_share_a_pass_are_proven_once() -> None:
    """That calls may share a batch is not tested again by another process, nor at a layer, but for the rows that do."""

    def shared(subject: Subject) -> int:
        before = subject.ran
        requests = [ca.InspectRequest("m", captures=(ca.Capture("a"),)) for _ in range(2)]
        outcomes = inspect_batch([plan_request(subject, request, {"x": noise(1, 8)}) for request in requests])
        assert [result.provenance.companions for result in outcomes if isinstance(result, InspectResult)] == [1, 1]
        return subject.ran - before

    build = layers(lambda m, x: m.b(torch.tanh(m.a(x))))
    first = Subject(build())
    proof, axes, of_these_rows = 3, 2, 3
    assert shared(first) == proof + axes + of_these_rows + 1
    assert [shared(subject) for subject in [outliving(first, build())] * 3] == [of_these_rows + 1] * 2 + [1]


def test_the_reply_names_the_time_of_tests() -> None:
    """The tests have a stage of their own, which is no part of the check's; the next request has none."""
    subject = Subject(image_net())
    first, second = (subject.ask(ca.Saliency(), IMAGES).timings for _ in range(2))
    assert first.proof_ms > 0 == second.proof_ms
    assert first.check_ms > 0 < second.check_ms


def some_test() -> None:
    """A test, by its name."""


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((some_test, frozenset({("b", int, 2), ("a", str, "x")}), torch.float32),
         f"({__name__}.some_test, {{('a', builtins.str, 'x'), ('b', builtins.int, 2)}}, torch.float32)"),
        (("rows", object()), ""),
        (None, ""),
    ],
    ids=["values", "an object of this process", "nothing"],
)  # fmt: skip
def test_a_key_has_one_text_in_every_process(key: Any, text: str) -> None:
    """Names of functions, sets in order; what lives at an address has none."""
    assert text_of(key) == text


def test_a_parametrization_is_no_hook() -> None:
    """Parametrized weights are proven for later processes too."""

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    net = image_net()
    register_parametrization(net.get_submodule("a"), "weight", Twice())
    subject = Subject(net)
    assert subject.verdict(ca.Saliency(), IMAGES) == AGREES
    assert subject.proofs.sound
