"""Arguments of forward that are no tensors: the model gets them in every pass, and nothing is shared across them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Argument, CheckMode, CheckRequest
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.planning.plan import plan_request
from cutaway.gateway import serve
from tests.support.checked_attributions import noise, wired
from tests.support.worker_calls import ask as worker_ask
from tests.support.worker_calls import outcome, row, worker

X = {"x": noise(2, 3)}


class Scaled(nn.Module):
    """Three classes, times a number, in a mode that a text names; keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(3, 3)
        self.seen: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor, scale: float = 1.0, mode: str = "tanh", mask: Tensor | None = None) -> Tensor:
        self.seen.append((scale, mode, mask))
        h = self.fc(x) if mask is None else self.fc(x) * mask
        return (torch.tanh(h) if mode == "tanh" else h) * scale


class Detaching(Scaled):
    """Its backward pass is wrong in one mode only."""

    def forward(self, x: Tensor, scale: float = 1.0, mode: str = "tanh", mask: Tensor | None = None) -> Tensor:
        good = super().forward(x, scale, mode, mask)
        return good + (good.detach() if mode == "wrong" else 0)


def subject(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda tensors: model(**tensors))


def ask(
    model: InspectedModel, *asked: ca.Attribution, check: CheckMode = CheckMode.SAME_PASS, **arguments: Argument
) -> InspectResult:
    request = ca.InspectRequest("m", arguments=arguments, attributions=asked, check=CheckRequest(check))
    return inspect(model, request, dict(X))


@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_every_pass_gets_them(mode: CheckMode) -> None:
    """Of predictions, Captum, references and checks."""
    model = Scaled()
    asked = (ca.IntegratedGradients(n_steps=4), ca.FeatureAblation(), ca.LayerGradCam(layer="fc"))
    result = ask(subject(model), *asked, check=mode, scale=2.5, mask=None)
    assert set(model.seen) == {(2.5, "tanh", None)}
    assert {check.verdict for each in result.attributions for check in each.checks} == {Verdict.AGREES}
    torch.testing.assert_close(torch.from_numpy(result.predictions["output"]), 2.5 * torch.tanh(model.fc(X["x"])))


def test_the_next_request_does_not_get_them() -> None:
    model = Scaled()
    server = subject(model)
    ask(server, scale=3.0)
    ask(server)
    assert model.seen[-1] == (1.0, "tanh", None)


@pytest.mark.parametrize("order", [("tanh", "wrong"), ("wrong", "tanh")])
def test_a_doubt_is_remembered_for_the_arguments_that_raise_it(order: tuple[str, str]) -> None:
    server = subject(Detaching())
    verdicts = {mode: ask(server, ca.Saliency(), mode=mode).attributions[0].checks[0].verdict for mode in order}
    assert verdicts == {"tanh": Verdict.AGREES, "wrong": Verdict.INCONCLUSIVE}


def test_requests_share_passes_with_those_of_the_same_arguments() -> None:
    """True and 1 are not the same."""
    model = Scaled()
    server = subject(model)
    scales = (2, 2, 3, True, 2)
    plans = [plan_request(server, ca.InspectRequest("m", arguments={"scale": scale}), dict(X)) for scale in scales]
    for _ in range(2):
        inspect_batch(plans)  # finds out that rows are independent, and compares these
    model.seen.clear()
    results = inspect_batch(plans)
    assert sorted(map(repr, [scale for scale, *_ in model.seen])) == ["2", "3", "True"]
    for scale, result in zip(scales, results):
        assert isinstance(result, InspectResult)
        expected = (torch.tanh(model.fc(X["x"])) * scale).detach().numpy()
        np.testing.assert_array_equal(result.predictions["output"], expected)


def test_they_travel() -> None:
    """Every kind, and numpy's."""
    model = Scaled()
    with serve({"m": model}) as server, ca.Client(server.address) as client:
        for value in (2, 2.5, True, np.float64(0.5), np.int64(4)):
            model.seen.clear()
            client.inspect("m", {"x": np.ones((1, 3), np.float32)}, arguments={"scale": value, "mode": "plain"})
            (scale, mode, _), *_ = model.seen
            assert (scale, type(scale), mode) == (
                value,
                type(getattr(value, "item", lambda value=value: value)()),
                "plain",
            )


@pytest.mark.parametrize(
    ("arguments", "reason", "field", "words"),
    [
        ({"scal": 2}, "INPUT_UNKNOWN", "arguments.scal", "did you mean 'scale'"),
        ({"x": 2}, "INVALID_VALUE", "arguments.x", "a tensor is sent for it too"),
        ({"scale": [1, 2]}, "INVALID_VALUE", "arguments.scale", "an array is an input"),
        ({"scale": 2**70}, "INVALID_VALUE", "arguments.scale", "from -9223372036854775808"),
        ({"mode": 3, "scale": "a"}, "MODEL_FAILED", "", "scale='a'"),
    ],
)
def test_what_is_no_argument_is_refused(arguments: dict[str, Any], reason: str, field: str, words: str) -> None:
    with serve({"m": Scaled()}) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.InvalidArgument, match=words) as caught:
            client.inspect("m", {"x": np.ones((1, 3), np.float32)}, arguments=arguments)
        assert (caught.value.reason, caught.value.field) == (reason, field)


def test_an_argument_in_the_place_of_an_input_that_is_needed() -> None:
    """It is then not missing; a number as a tensor is told where it belongs."""
    with (
        serve({"m": Scaled()}) as server,
        ca.Client(server.address) as client,
        pytest.raises(ca.InvalidArgument, match="goes into arguments"),
    ):
        client.inspect("m", {"x": np.ones((1, 3), np.float32), "scale": 2})


def test_the_passes_that_are_counted_beforehand_get_them() -> None:
    """A layer's units are counted in a pass, which must not fail for want of an argument: then the limit would not
    hold."""
    model = wired(lambda m, x, scale: torch.tanh(m.fc(x)) * scale, fc=lambda: nn.Linear(3, 3))()
    asked = ca.LayerFeatureAblation(layer="fc")
    plan = plan_request(
        subject(model), ca.InspectRequest("m", arguments={"scale": 2.0}, attributions=(asked,)), dict(X)
    )
    ((_, passes),) = costs(plan)
    assert passes >= 3 * len(X["x"])


# Names that vanish in the ``**kwargs`` of a forward.


class Masked(nn.Module):
    """Takes names as transformers' models do, and reads one from its ``**kwargs``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        assert input_ids is not None
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        h = (self.words(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.fc(h + kwargs.get("shift", 0)) * kwargs.get("scale", 1)


class Wrapped(nn.Module):
    """Gives whatever it gets to another model, on that one's device; ``noisy`` adds random numbers."""

    def __init__(self, noisy: bool = False) -> None:
        super().__init__()
        self.inner = Masked()
        self.noisy = noisy

    def forward(self, **inputs: Any) -> Any:
        inputs = {name: each.to("cpu") if isinstance(each, Tensor) else each for name, each in inputs.items()}
        returned = self.inner(**inputs)
        return {"logits": returned + torch.rand(()) if self.noisy else returned}


TOKENS = {
    "input_ids": torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]]),
    "attention_mask": torch.ones(2, 4, dtype=torch.int64),
}
SHORT = TOKENS["input_ids"].clamp(max=1)
SHIFT = torch.tensor([[0.5], [0.25]])


@pytest.mark.parametrize(
    ("inputs", "arguments", "field", "words"),
    [
        ({"attention_mak": SHORT}, {}, "tensors.by_name.attention_mak", "did you mean 'attention_mask'"),
        (
            {"attention_mask": SHORT, "extra": SHIFT},
            {},
            "tensors.by_name.extra",
            "the model takes input_ids, attention",
        ),
        ({"shift": SHIFT, "shfit": SHIFT}, {}, "tensors.by_name.shfit", "not 'shfit'"),
        ({}, {"attention_msk": None}, "arguments.attention_msk", "did you mean 'attention_mask'"),
        ({}, {"input_id": "a"}, "arguments.input_id", "did you mean 'input_ids'"),
    ],
)
def test_a_name_that_vanishes_is_refused_by_the_named_ones(
    inputs: dict[str, Tensor], arguments: dict[str, Any], field: str, words: str
) -> None:
    """As often as it is sent, in a batch with others too; and what ``**kwargs`` takes and reads is answered."""
    served = worker(Masked())
    for _ in range(2):
        sent = {"input_ids": TOKENS["input_ids"], **inputs}
        with pytest.raises(ca.InvalidArgument, match=words) as caught:
            worker_ask(served, sent, arguments=arguments)
        assert (caught.value.reason, caught.value.field) == ("INPUT_UNKNOWN", field)
        replies = [outcome(reply) for reply in served.answer([row(sent, arguments=arguments), row(sent)])]
        assert isinstance(replies[0], ca.InvalidArgument)


@pytest.mark.parametrize(
    "inputs", [{"shift": SHIFT}, {"shift": 0 * SHIFT}, {"attention_mask": TOKENS["attention_mask"]}]
)
@pytest.mark.parametrize("arguments", [{}, {"scale": 2.0}, {"scale": 1}])
@pytest.mark.parametrize("model", [Masked, Wrapped, lambda: Wrapped(noisy=True)])
def test_what_is_read_is_answered(model: Any, inputs: dict[str, Tensor], arguments: dict[str, Any]) -> None:
    """Also where its value makes no difference: no name is doubted that the model reads."""
    sent = {"input_ids": TOKENS["input_ids"], **inputs}
    got = worker_ask(worker(model()), sent, arguments=arguments, seed=3)
    assert not got.warnings
    torch.manual_seed(3)
    expected = model().eval()
    torch.manual_seed(3)
    returned = expected(**sent, **arguments)
    assert np.array_equal(
        next(iter(got.predictions.values())),
        (returned if isinstance(returned, Tensor) else returned["logits"]).detach(),
    )
    assert got.provenance.forwards == 1


def test_an_argument_that_changes_nothing_is_warned_of() -> None:
    """It may be a default; with every type of value."""
    served = worker(Masked())
    for value in (2, 0.5, True, "text", None):
        got = worker_ask(served, {"input_ids": TOKENS["input_ids"]}, arguments={"scael": value, "scale": 2})
        assert [(each.code, each.subject) for each in got.warnings] == [("INPUT_NOT_READ", "scael")]


@pytest.mark.parametrize("noisy", [False, True])
def test_a_wrapper_that_takes_any_name_is_warned_of(noisy: bool) -> None:
    """With the name; every answer says so, and the others are answered without."""
    served = worker(Wrapped(noisy))
    for _ in range(2):
        got = worker_ask(served, {"input_ids": TOKENS["input_ids"], "attention_mak": SHORT}, arguments={"scael": 2})
        assert [(each.code, each.subject) for each in got.warnings] == [
            ("INPUT_NOT_READ", "attention_mak"), ("INPUT_NOT_READ", "scael")
        ]  # fmt: skip
        assert "right name" in got.warnings[0].message
        assert not worker_ask(served, TOKENS).warnings


def test_an_unnamed_tensor_finds_its_place_beside_any_names() -> None:
    """A forward's only input without a default, though it takes others by any name."""

    class Open(nn.Module):
        def forward(self, image: Tensor, *more: Tensor, **others: Tensor) -> Tensor:
            return image * 2

    assert worker_ask(worker(Open()), {"": torch.ones(1, 2)}).predictions["output"].tolist() == [[2, 2]]
    with pytest.raises(ca.InvalidArgument, match="the model needs image"):
        worker_ask(worker(Open()), {"imag": torch.ones(1, 2)})
