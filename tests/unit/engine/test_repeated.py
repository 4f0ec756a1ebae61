"""The next answers to a question are prepared by its first: to the bit what a worker says that was never asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.values import changed
from cutaway.engine.execution import repeated
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.execution.repeated import Repeated
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from cutaway.v1.inspection_pb2 import InspectResponse
from cutaway.v1.worker_pb2 import WorkerReply
from tests.support.reply_equality import differences
from tests.support.small_models import Images
from tests.support.worker_calls import outcome, read, row, worker

ROUNDING = 1e-4


class Plain(nn.Module):
    """A convolution, a normalisation in place of its input, and a head; [rows, 2, 4, 4] to [rows, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)
        self.head = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.relu(self.norm(self.conv(x))).flatten(1))
        return logits


class Table(nn.Module):
    """Numbers and a category, to two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.mix, self.head = nn.Embedding(5, 3), nn.Linear(7, 6), nn.Linear(6, 2)

    def forward(self, numbers: Tensor, kind: Tensor) -> dict[str, Tensor]:
        hidden = self.mix(torch.cat((numbers, self.kinds(kind)), 1)).tanh()
        return {"logits": self.head(hidden), "hidden": hidden}


class Steps(nn.Module):
    """A sequence in front: [time, rows, 3] inside."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x.transpose(0, 1))[0][-1])
        return logits


class Counts(nn.Module):
    """Keeps a count, a list and a running mean, and answers with them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.seen = nn.Linear(3, 2), list[int]()
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(len(x))
        logits: Tensor = self.head(x) * self.count + len(self.seen)
        return logits


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], dict[str, Tensor]]:
    return lambda seed: {"x": torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)}


def cells(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "numbers": torch.randn(2, 4, generator=generator),
        "kind": torch.randint(5, (2,), generator=generator),
    }


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]], tuple[str, ...]]] = {
    "a picture": (Plain, rows(1, 2, 4, 4), ("conv", "norm", "relu", "head")),
    "three pictures": (Plain, rows(3, 2, 4, 4), ("conv", "relu")),
    "bfloat16": (lambda: Plain().bfloat16(), rows(2, 2, 4, 4, dtype=torch.bfloat16), ("conv", "relu")),
    "float64": (lambda: Plain().double(), rows(2, 2, 4, 4, dtype=torch.float64), ("norm",)),
    "a table": (Table, cells, ("kinds", "mix")),
    "time first": (Steps, rows(2, 5, 3), ("head",)),
    "state": (Counts, rows(2, 3), ("head",)),
}

QUESTIONS: dict[str, dict[str, Any]] = {
    "predictions": {},
    "captures": {"captures": {}},
    "first calls": {"captures": {"call": 0}, "input_gradients": True},
    "gradients": {"captures": {}, "input_gradients": True},
    "a class": {"target": ca.ClassIndex((1,)), "input_gradients": True},
    "a sum": {"target": ca.OutputSum(), "input_gradients": True, "captures": {}},
    "gradients alone": {"predictions": False, "input_gradients": True},
    "an input": {"input_gradients": ["x"]},
}


def two(name: str) -> tuple[Worker, Worker, Callable[[int], dict[str, Tensor]]]:
    """Two workers with the same weights, and inputs by seed."""
    build, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    network = build().eval()
    return worker(network), worker(deepcopy(network)), inputs


def question(name: str, kind: str) -> dict[str, Any]:
    """What is asked of a model: its own modules, and an output and an input that have gradients."""
    asked = dict(QUESTIONS[kind])
    if (captures := asked.pop("captures", None)) is not None:
        asked["captures"] = [ca.Capture(module, **captures) for module in MODELS[name][2]]
    if name == "a table":
        if "input_gradients" in asked:
            asked["input_gradients"] = ["numbers"]
        asked["target"] = replace(asked.get("target", ca.PredictedClass()), output="logits")
    return asked


def said(subject: Worker, call: Call) -> bytes:
    """All of a reply but its times; a failure with its field."""
    (answer,) = subject.answer([call])
    reply = WorkerReply.FromString(answer)
    if not reply.response:
        return reply.failure.SerializeToString(deterministic=True)
    return InspectResponse.FromString(reply.response).SerializeToString(deterministic=True)


def kept(subject: Worker) -> list[Repeated]:
    """What answers have left."""
    return [each for each in subject._model.recent.values() if isinstance(each, Repeated)]


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each prepared answer was given, or the model did otherwise."""
    given: list[bool] = []
    answer = Repeated.answer

    def counted(self: Repeated, plan: Any) -> Any:
        result = answer(self, plan)
        given.append(result is not None)
        return result

    monkeypatch.setattr(Repeated, "answer", counted)
    return given


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_the_next_answers_are_those_of_a_worker_that_was_never_asked(name: str, kind: str, again: list[bool]) -> None:
    subject, _, inputs = two(name)
    asked = question(name, kind)
    before = {key: tensor.clone() for key, tensor in subject._model.module.state_dict().items()}
    for seed in range(4):
        _, fresh, _ = two(name)
        call = row(inputs(seed), **asked)
        assert said(subject, call) == said(fresh, call)
    assert again == [True] * 3
    after = subject._model.module.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in subject._model.module.modules())


def test_callers_who_ask_together_get_what_each_gets_alone(again: list[bool]) -> None:
    """In turns of three and of two, to rounding: oneDNN computes another number of rows otherwise."""
    subject, alone, inputs = two("a picture")
    asked = question("a picture", "gradients")
    for turn in range(3):
        for size in (3, 2):
            calls = [row(inputs(10 * turn + seed), **asked) for seed in range(size)]
            for call, reply in zip(calls, list(map(read, subject.answer(calls)))):
                assert not [*differences(reply, outcome(next(alone.answer([call]))), ROUNDING)]
                assert reply.provenance.companions == size - 1
    assert again == [True] * (4 + 14)  # turns, and the other worker's calls, behind the first of each kind


def test_each_caller_of_a_turn_gets_the_answer_to_its_own_class(again: list[bool]) -> None:
    """Those of one class lie together in the pass, wherever they were in the turn, with their numbers of rows."""
    subject, alone, inputs = two("a picture")
    asked = question("a picture", "gradients")
    for turn in range(3):
        for classes, counts in (((0, 1, 0), (1, 1, 1)), ((1, 2, 1, 0), (2, 1, 3, 1))):
            calls = []
            for seed, (target, count) in enumerate(zip(classes, counts)):
                x = torch.cat([inputs(100 * turn + 10 * seed + number)["x"] for number in range(count)])
                calls.append(row({"x": x}, **{**asked, "target": target}))
            for call, reply in zip(calls, list(map(read, subject.answer(calls)))):
                assert not [*differences(reply, outcome(next(alone.answer([call]))), ROUNDING)]
                assert reply.provenance.companions == len(classes) - 1
    assert any(again)


class Draws(nn.Module):
    """Draws where a number is far below zero; no read of it shows."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.randn(x.shape) if min(x.flatten().tolist()) < -1e3 else 0)


def test_a_seed_is_kept_in_a_turn_that_was_asked_before() -> None:
    """A row that draws beside others would get other numbers."""
    subject, one = worker(Draws()), torch.ones(1, 3)
    for x in (one, one, -1e4 * one):
        calls = [row({"x": each}, seed=7) for each in (one, x, one)]
        for call, reply in zip(calls, list(map(read, subject.answer(calls)))):
            assert not [*differences(reply, outcome(next(worker(Draws()).answer([call]))), 0.0)]


def test_callers_are_joined_whatever_the_mode_of_the_thread() -> None:
    """Rows that are joined in inference mode could not be differentiated, and each request would run alone."""
    subject, _, inputs = two("a picture")
    asked = question("a picture", "gradients")
    for _ in range(2):
        with torch.inference_mode():
            replies = [*map(read, subject.answer([row(inputs(seed), **asked) for seed in range(3)]))]
        assert [reply.provenance.companions for reply in replies] == [2, 2, 2]


class Moody(nn.Module):
    """Does otherwise where the first number is negative."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.mood, self.part, self.head = mood, nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        is_bad = bool(x[0, 0] < 0)
        if is_bad and self.mood == "tries twice":
            with suppress(RuntimeError):
                self.part(hidden[:, :2])
        if not is_bad or self.mood != "left out":
            hidden = self.part(hidden)
        if is_bad and self.mood == "twice":
            hidden = self.part(hidden)
        if is_bad and self.mood == "fails":
            raise ValueError("not today")
        if is_bad and self.mood == "detached":
            hidden = hidden.detach()
        logits: Tensor = self.head(hidden)
        if is_bad and self.mood == "cut":
            logits = logits.detach()
        return logits[:, :1] if is_bad and self.mood == "one class" else logits


class Turns(nn.Module):
    """Returns two outputs, the second one first where the first number is negative."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.part, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        outputs = {"hidden": (hidden := self.part(x)), "output": self.head(hidden)}
        return dict(reversed(outputs.items())) if bool(x[0, 0] < 0) else outputs


class Part(nn.Linear):
    """Returns another type, or a tuple, where the first number is negative."""

    mood = ""

    def forward(self, input: Tensor) -> Any:
        hidden = super().forward(input)
        if bool(input[0, 0] < 0):
            return (hidden,) if self.mood == "a tuple" else hidden.double()
        return hidden


class Wraps(nn.Module):
    """A `Part` whose answer is used as it comes."""

    def __init__(self, mood: str) -> None:
        super().__init__()
        self.part, self.head = Part(3, 3), nn.Linear(3, 2)
        self.part.mood = mood

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.part(x)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        logits: Tensor = self.head(hidden.float())
        return logits


@pytest.mark.parametrize(
    "mood",
    ["left out", "twice", "tries twice", "fails", "detached", "cut", "one class", "a tuple", "another type", "turned"],
)
def test_a_model_that_does_otherwise_is_answered_as_ever(mood: str, again: list[bool]) -> None:
    """Also afterwards, where it does as at first; its passes are then those of one answer."""
    torch.manual_seed(0)
    network = {"a tuple": Wraps, "another type": Wraps, "turned": Turns}.get(mood, Moody)(mood).eval()
    subject = worker(network)
    asked: dict[str, Any] = {"captures": ["part"], "input_gradients": True, "target": 0}
    good, bad = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[-1.0, 2.0, 3.0]])
    for x in (good, good * 2, bad, good, bad):
        call = row({"x": x}, **asked)
        assert said(subject, call) == said(worker(deepcopy(network)), call)
    assert again[:1] == [True]
    assert not any(module._forward_hooks for module in network.modules())


class Waves(nn.Module):
    """Returns complex numbers, which no reply can hold, beside others."""

    def __init__(self, dtype: torch.dtype, size: float) -> None:
        super().__init__()
        self.head, self.dtype, self.size = nn.Linear(3, 2), dtype, size

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"output": self.head(x), "wave": (x.double() * self.size).to(self.dtype)}


@pytest.mark.parametrize(("dtype", "size"), [(torch.complex32, 1), (torch.complex64, 1), (torch.complex128, 1.5e308)])
def test_what_a_reply_cannot_hold_is_named_each_time(dtype: torch.dtype, size: float) -> None:
    """And costs nothing where it is not asked for."""
    subject = worker(Waves(dtype, size).eval())
    for asked, says in (({}, b"predictions.outputs"), ({"predictions": False}, b"")):
        (answer,) = {said(subject, row({"x": torch.ones(1, 3)}, **asked)) for _ in range(3)}
        assert says in answer
        assert (b"INPUT_DTYPE" in answer) is bool(says)


def test_a_model_that_did_otherwise_once_runs_once_a_request(again: list[bool]) -> None:
    network = Moody("twice").eval()
    subject = worker(network)
    for x in (1.0, -1.0, 1.0, -1.0):
        subject.answer([]), said(subject, row({"x": torch.full((1, 3), x)}, captures=["part"]))
    assert again == [False]
    assert [each.is_unlike for each in kept(subject)] == [True]


def test_another_question_is_another_question(again: list[bool]) -> None:
    """Other classes, captures and shapes do not get each other's answers; a class that does not exist is an error."""
    subject, _, inputs = two("three pictures")
    questions: tuple[dict[str, Any], ...] = (
        *({"target": number, "input_gradients": True} for number in (0, 1, 2, 3)),
        *({"captures": [name]} for name in ("conv", "norm", "conv*", "head")),
        {"target": ca.OutputSum()},
        {"target": ca.OutputNorm()},
        {"captures": ["relu", "head", "conv"]},
        {"target": 1, "captures": ["conv"]},
        {"target": 1, "captures": ["norm"]},
        {"captures": [ca.Capture("conv", slices=(ca.Slice(1, 0, 1),))]},
        {"captures": [ca.Capture("conv", at=(ca.Point.INPUT,))]},
        {"captures": ["conv"], "reply_data_type": "float16"},
        {"captures": ["conv"], "edits": [ca.Zero("conv")]},
    )
    for asked in questions:
        for seed in range(2):
            _, fresh, _ = two("three pictures")
            for count in (3, 2):
                call = row({"x": inputs(seed)["x"][:count]}, **asked)
                assert said(subject, call) == said(fresh, call)
    assert all(again)


def test_a_warning_about_numbers_comes_at_any_time() -> None:
    """Pixels up to 255 for a model that takes 0 to 1: also where earlier ones were right."""
    subject = worker(Images())
    pixels = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    codes = []
    for factor in (1, 1, 255, 1):
        reply = read(next(subject.answer([row({"image": pixels * factor})])))
        codes.append([warning.code for warning in reply.warnings])
    assert codes == [[], [], [ca.WarningCode.INPUT_RANGE], []]
    pixels[0, 0, 0, 0] = np.nan
    reply = read(next(subject.answer([row({"image": pixels * 255})])))
    assert {warning.code for warning in reply.warnings} == {ca.WarningCode.INPUT_RANGE, ca.WarningCode.NOT_FINITE}


def test_a_caller_who_no_longer_waits_gets_no_prepared_answer(again: list[bool]) -> None:
    subject, _, inputs = two("a picture")
    for _ in range(2):
        said(subject, row(inputs(0)))
    assert again == [True]
    reply = WorkerReply.FromString(next(subject.answer([row(inputs(0), deadline_s=-1)])))
    assert reply.failure.reason == "DEADLINE_EXCEEDED"


def test_the_owner_may_change_the_model_between_two_answers() -> None:
    """Weights and hooks of the owner's count at once."""
    subject, _, inputs = two("a picture")
    network = subject._model.module
    call = row(inputs(0), captures=["head"])
    assert said(subject, call) == said(subject, call)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    owners = network.get_submodule("relu").register_forward_hook(lambda _module, _args, output: output + 1)
    changed_answer = said(subject, call)
    subject._model.recent.clear()
    assert changed_answer == said(subject, call)
    owners.remove()


class Keeps(nn.Module):
    """Returns its own memory, which the next pass writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor
        self.register_buffer("memory", torch.zeros(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.memory.copy_(x)
        return self.memory


def test_what_an_answer_holds_is_its_own() -> None:
    subject = worker(Keeps())
    given = [ca.InspectRequest("model", {"x": np.full((1, 3), number, np.float32)}) for number in range(1, 4)]
    answers = [subject.inspect(request) for request in given]
    assert len(kept(subject)) == 1
    assert [float(answer.predictions["output"][0, 0]) for answer in answers] == [1, 2, 3]


def test_rows_that_qualify_are_found_in_each_answer() -> None:
    """A condition on probabilities is one on numbers: the first row is sure enough, the second one is not."""
    given = [{"image": np.random.default_rng(seed).random((1, 1, 8, 8), np.float32)} for seed in range(2)]
    subject = worker(Images())
    sure = [read(next(subject.answer([row(each)]))).classes[0].probability for each in given]
    asked: dict[str, Any] = {"explain_if": ca.ExplainIf(probability_at_least=sum(sure) / 2)}
    for number in sorted(range(2), key=lambda number: -sure[number]):
        call = row(given[number], **asked)
        answer = said(subject, call)
        subject._model.recent.clear()
        assert answer == said(subject, call)
        said(subject, row(given[sure.index(max(sure))], **asked))  # whose answer is prepared now, if one is


def test_the_same_request_with_another_target_is_another_question() -> None:
    """As requests are that were joined."""
    torch.manual_seed(0)
    subject, x = worker(Plain().eval())._model, rows(1, 2, 4, 4)(0)
    targets = (ca.PredictedClass(), ca.OutputSum(), ca.OutputNorm(), ca.ClassIndex((0,)), ca.ClassIndex((1,)))
    for gradients in (None, ()):
        request = ca.InspectRequest("model", {}, input_gradients=gradients)
        for target in targets:
            answers = [inspect(subject, changed(request, target=target), x) for _ in range(2)]
            expected = inspect(worker(deepcopy(subject.module))._model, changed(request, target=target), x)
            assert all(not [*differences(answer, expected, 0.0)] for answer in answers)


RAN_IN: list[int] = []
"""The threads of each pass of `Threads`."""


class Threads(nn.Module):
    """Notes its threads, and adds their number times ``shows``."""

    def __init__(self, shows: float) -> None:
        super().__init__()
        self.head, self.shows = nn.Linear(3, 2), shows

    def forward(self, x: Tensor) -> Tensor:
        RAN_IN.append(torch.get_num_threads())
        logits: Tensor = self.head(x) + self.shows * torch.get_num_threads()
        return logits


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch has two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_models_have_one_thread_from_the_first_request_on(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no bit changes later. If a row takes a tenth of a millisecond, twenty do; also in an explanation."""
    monkeypatch.setattr(repeated, "_fastest_ms", lambda model, inputs: 0.1)
    subject = worker(Threads(1.0))
    repeated.find_short_passes(subject._model, lambda: rows(1, 3)(0))
    ran_in: dict[int, set[int]] = {}
    for count in (1, 20, 21):
        RAN_IN.clear()
        answers = {said(subject, row(rows(count, 3)(0), captures=["head"], input_gradients=True)) for _ in range(4)}
        assert len(answers) == 1
        ran_in[count] = {*RAN_IN}
    assert ran_in == {1: {1}, 20: {1}, 21: {2}}
    for method, passes in ((ca.Saliency(), {1}), (ca.IntegratedGradients(n_steps=21), {1, 2})):
        RAN_IN.clear()
        explained = row(rows(1, 3)(0), attributions=[method], target=0, check="off")
        assert read(next(subject.answer([explained]))).attributions
        assert {*RAN_IN} == passes
    assert torch.get_num_threads() == 2


def test_the_size_of_a_pass_is_that_of_all_its_inputs(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever axis is that of rows: of a series, it is not the first."""
    monkeypatch.setattr(repeated, "_fastest_ms", lambda model, inputs: 0.1)
    subject = worker(Threads(1.0))
    repeated.find_short_passes(subject._model, lambda: rows(4, 3)(0))
    assert subject._model.short_elements == 20 * 4 * 3


def test_a_slow_model_keeps_its_threads(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of three milliseconds, and one that takes one thread twice as long."""
    for times in ([3.0, 3.0], [0.5, 1.0]):
        each = iter(times)
        monkeypatch.setattr(repeated, "_fastest_ms", lambda model, inputs, each=each: next(each))
        subject = worker(Threads(0.0))
        repeated.find_short_passes(subject._model, lambda: rows(1, 3)(0))
        assert subject._model.short_elements == 0


def test_a_long_pass_is_measured_once(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of seconds must not take many times as long to load."""
    monkeypatch.setattr(repeated, "_LONG_S", 1e-9)
    monkeypatch.setattr(repeated, "_SHORT_MS", 0.0)
    RAN_IN.clear()
    repeated.find_short_passes(worker(Threads(0.0))._model, lambda: rows(1, 3)(0))
    assert len(RAN_IN) == 1


@pytest.mark.parametrize("given", [torch.ones(1, 3), {"input": torch.ones(1, 3, dtype=torch.float64)}])
def test_inputs_that_were_converted_are_converted_again(given: Any) -> None:
    """One without a name, and numbers in a type that the model refuses."""
    subject = worker(nn.Linear(3, 2))
    answers = [read(next(subject.answer([row(given)]))) for _ in range(3)]
    assert all((answer.predictions["output"] == answers[0].predictions["output"]).all() for answer in answers)


def test_a_class_by_its_label_is_found_again() -> None:
    """The plan of a question has the index, which the next request does not."""
    subject, image = worker(Images()), {"image": np.ones((1, 1, 8, 8), np.float32)}
    by_index, by_label = (
        {said(subject, row(image, target=target, input_gradients=True)) for _ in range(3)}
        for target in (1, subject._model.labels[1])
    )
    assert by_label == by_index
