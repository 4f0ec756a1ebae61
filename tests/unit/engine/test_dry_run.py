"""The dry run: what a reply would hold and how large it would be, from one forward pass, held against the reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import CheckMode, PointName
from cutaway.contract.results import Estimate, Outline, WarningCode
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.contract.tensors import dtype_name
from cutaway.gateway import serve
from tests.matrix.asking import every
from tests.support.cli import Pets, said, squeezed
from tests.support.function_module import Through
from tests.support.worker_calls import outcome, read, response, row, worker
from tests.support.zoo.table import ZOO

ROWS = 3
INPUTS = {
    "x": torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1)),
    "ids": torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
}


class Net(nn.Module):
    """A module that is called twice, one never; tuples and dicts, whole numbers, an operator, token ids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4)
        self.twice = nn.Linear(4, 4)
        self.pair = Through(lambda h: (h.half().float(), {"deep": h[:, :, None] * torch.ones(6)}))
        self.whole = Through(lambda h: (h * 100).long())
        self.total = Through(lambda h: h.sum())
        self.never = nn.Linear(4, 4)
        self.again = Through(lambda h: h * 2)
        self.split = Through(lambda h: (h[:, :1], h[:, 1:]))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.twice(torch.relu(self.twice(x + self.words(ids).sum(1)))))
        one, more = self.pair(hidden)
        self.whole(one), self.total(one)
        left, right = self.split(self.again(one) + self.again(one[:, :1]))
        logits = self.head(torch.cat([left, right], 1) + more["deep"].sum(2))
        return {"logits": logits, "ranks": logits.argsort(1)}


ALL: tuple[PointName, ...] = ("input", "output", "grad_input", "grad_output")
INPUT_METHODS = [ca.IntegratedGradients(inputs=("x",), n_steps=4), ca.Occlusion(inputs=("x",), windows={"x": (2,)})]
LAYER_METHODS = [ca.LayerGradientXActivation(layer="words"), ca.LayerActivation(layer="head")]
QUESTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "every place": {"captures": [ca.Capture("*", at=ALL)]},
    "the whole model": {"captures": [ca.Capture("words", at=ALL[:2]), ca.Capture("head", at=ALL)]},
    "one call": {"captures": [ca.Capture("twice", at=ALL, call=1)]},
    "one path": {"captures": [ca.Capture("pair", at=("output", "grad_output"), path='[1]["deep"]')]},
    "a part": {"captures": [ca.Capture("head", at=ALL, slices=(ca.Slice(0, 1), ca.Slice(1, 0, 3, 2)))]},
    "a mean": {"captures": [ca.Capture("twice", at=ALL, reduce=ca.Mean((1,)))]},
    "the largest": {"captures": [ca.Capture("twice", at=ALL, reduce=ca.TopElements(2), data_type="bfloat16")]},
    "a type": {"captures": [ca.Capture("*", at=ALL, data_type="float64")]},
    "reply type": {"captures": [ca.Capture("*", at=ALL)], "input_gradients": True, "reply_data_type": "float16"},
    "a gradient of a value too large for its type": {
        "captures": [ca.Capture("head", at="grad_output", data_type="float16")], "edits": [ca.Add("head", addend=1e6)]},
    "an operator": {"captures": [ca.Capture(op=":relu#1", at=ALL), ca.Capture(op=":relu#0", at="grad_output")]},
    "operators": {"captures": [ca.Capture(op=":*#*", at=ALL)]},
    "some operators": {"captures": [ca.Capture(op="*:linear#*", at=("grad_input", "output"))]},
    "gradients": {"input_gradients": True, "captures": [ca.Capture(parameter="*.weight")]},
    "reduced gradient": {"captures": [ca.Capture(parameter="head.weight", reduce=ca.Norm((1,)))]},
    "several targets": {
        "target": ca.TopK(2), "input_gradients": True, "attributions": [ca.Saliency(inputs=("x",))],
        "captures": [ca.Capture("twice", at=ALL), ca.Capture(parameter="head.*"), ca.Capture("total", at=ALL[:2])]},
    "a neuron": {"target": ca.Neuron("twice", (2,)), "input_gradients": True},
    "edits": {
        "edits": [ca.Scale("twice", factor=0.5), ca.Zero("head", at="grad_output")], "compare": True,
        "captures": [ca.Capture("twice", at=ALL)]},
    "stopping early": {"predictions": False, "captures": [ca.Capture("twice", call=0)]},
    "no predictions": {"predictions": False, "captures": ["twice"]},
    "explained": {"attributions": [*INPUT_METHODS, *LAYER_METHODS]},
    "explained at a layer called twice": {
        "attributions": [ca.LayerActivation(layer="again"), ca.LayerGradientXActivation(layer="again")]},
    "explained at a layer of several tensors": {"attributions": [ca.LayerActivation(layer="split")]},
    "explained, unchecked": {"attributions": [*INPUT_METHODS, *LAYER_METHODS], "check": "off"},
    "explained in half": {"attributions": [*INPUT_METHODS, *LAYER_METHODS], "reply_data_type": "float16"},
    "explained, with references": {
        "attributions": [*INPUT_METHODS, ca.LayerGradientXActivation(layer="split"), ca.LayerGradCam(layer="pair",
            layer_path="[0]")], "check": ca.CheckRequest(references=True)},
    "explained by a neuron": {
        "attributions": [
            ca.NeuronGradient(neuron=ca.Neuron("twice", (1,)), inputs=("x",)),
            ca.Saliency(inputs=("x",), target=ca.Neuron("head", (1,))),
            ca.NeuronFeatureAblation(neuron=ca.Neuron("head", (1,)), inputs=("x",))]},
    "judged": {
        "attributions": [ca.Saliency(inputs=("x",), metrics=(ca.Infidelity(n_samples=2), ca.SensitivityMax()))]},
}  # fmt: skip


def outlines(result: ca.InspectResult) -> dict[str, Outline]:
    """The tensors of a real reply as an estimate names them."""
    found = by_name(tensors(result))
    return {name: Outline(dtype_name(entry.array), entry.array.shape) for name, entry in found.items()}


def close(estimated: int, real: int) -> bool:
    return abs(estimated - real) <= max(2048, 0.02 * real)


def compared(model: Any, inputs: Mapping[str, Tensor], **asked: Any) -> tuple[Estimate, ca.InspectResult, int]:
    """The estimate, the reply, and the reply's size."""
    net = worker(model)
    (dry,) = net.answer([row(inputs, dry_run=True, **asked)])
    (reply,) = net.answer([row(inputs, **asked)])
    estimate = read(dry).estimate
    assert estimate is not None
    return estimate, read(reply), len(response(reply))


@pytest.mark.parametrize("asked", QUESTIONS.values(), ids=QUESTIONS)
def test_estimate_is_what_the_reply_then_is(asked: dict[str, Any]) -> None:
    """Every tensor of the reply is announced, in order, by place, shape and data type; what is announced besides are
    gradients of which the reply warns that they did not arrive. And the size is the reply's."""
    estimate, result, size = compared(Net(), INPUTS, **asked)
    silent = [each.subject for each in result.warnings if each.code is WarningCode.NO_GRADIENT]
    real = outlines(result)
    assert [each for each in estimate.tensors.items() if each[0] in real] == list(real.items())
    for place in estimate.tensors.keys() - real.keys():
        assert "grad" in place
        assert "float" in estimate.tensors[place].data_type, place
        assert any(f":{name}" in place for name in silent), place
    assert close(estimate.reply_bytes, size)


def test_large_reply_is_estimated_to_the_byte_but_for_frames() -> None:
    """The larger a reply, the closer its estimate: what is not known are words, not numbers."""
    net = nn.Sequential(nn.Linear(64, 4096), nn.ReLU())
    what: dict[str, Any] = {"captures": [ca.Capture("?", at=ALL)], "input_gradients": True}
    estimate, _, size = compared(net, {"input": torch.randn(32, 64)}, **{**what, "target": ca.OutputSum()})
    assert size > 3 << 20
    assert abs(estimate.reply_bytes - size) < 1024


@pytest.mark.parametrize("name", ["cnn", "lstm", "bert"])
def test_every_explanation_is_estimated(name: str) -> None:
    """Whatever method explains, at inputs, layers or neurons, of numbers or of token ids: its values have the shapes
    and types announced, and the reply the size, but for a few bytes."""
    architecture = next(each for each in ZOO if each.name == name)
    net = worker(architecture.build())
    explanations = every(name, architecture.inputs)
    assert len(explanations) > 15
    for each in explanations:
        asked: dict[str, Any] = {"attributions": [each], "check": CheckMode.OFF, "seed": 1}
        (dry,), (reply,) = (
            net.answer([row(architecture.inputs, dry_run=dry_run, **asked)]) for dry_run in (True, False)
        )
        estimate, result = read(dry).estimate, read(reply)
        assert estimate is not None
        assert dict(estimate.tensors) == outlines(result), each
        # Without checks the size of every part is known.
        assert abs(estimate.reply_bytes - len(response(reply))) < 100, each


BAD: dict[str, dict[str, Any]] = {
    "no module": {"captures": ["nowhere"]},
    "no operator": {"captures": [ca.Capture(op="head:relu#0")]},
    "no operators": {"captures": [ca.Capture(op="head:*tanh#*")]},
    "no parameter": {"captures": [ca.Capture(parameter="nothing")]},
    "no call": {"captures": [ca.Capture("head", call=1)]},
    "no path": {"captures": [ca.Capture("head", path="[3]")]},
    "no gradient": {"captures": [ca.Capture("whole", at="grad_output")]},
    "no axis": {"captures": [ca.Capture("head", slices=(ca.Slice(5),))]},
    "no axis of a gradient": {"captures": [ca.Capture("head", at="grad_input", slices=(ca.Slice(5),))]},
    "not so many": {"captures": [ca.Capture("head", at="grad_output", reduce=ca.TopElements(9))]},
    "no mean of whole numbers": {"captures": [ca.Capture("whole", reduce=ca.Mean((1,)))]},
    "too large for the type": {
        "captures": [ca.Capture("head", data_type="float16")], "edits": [ca.Add("head", addend=1e6)]},
    "too large for the reply": {"reply_data_type": "float16", "edits": [ca.Add("head", addend=1e6)]},
    "captured in two ways": {"captures": ["head", ca.Capture("head", data_type="float16")]},
    "no such class": {"target": 7},
    "no such neuron": {"target": ca.Neuron("head", (9,))},
    "neuron of nothing": {"target": ca.Neuron("never", (0,)), "input_gradients": True},
    "too many targets": {"target": [1, 2]},
    "gradient of ids": {"input_gradients": ["ids"]},
    "no such input": {"input_gradients": ["z"]},
    "silent layer": {"attributions": [ca.LayerActivation(layer="never")]},
    "no layer": {"attributions": [ca.LayerActivation(layer="nowhere")]},
    "target of an explanation": {"attributions": [ca.Saliency(inputs=("x",), target=ca.ClassIndex((9,)))]},
    "neuron of an explanation": {
        "attributions": [ca.Saliency(inputs=("x",)), ca.NeuronGradient(neuron=ca.Neuron("head", (9,)), inputs=("x",))]},
    "silent neuron": {"attributions": [ca.NeuronGradient(neuron=ca.Neuron("never", (0,)), inputs=("x",))]},
    "target at a silent neuron": {"attributions": [ca.Saliency(inputs=("x",), target=ca.Neuron("never", (0,)))]},
    "baseline": {"attributions": [ca.IntegratedGradients(inputs=("x",), baselines={"x": np.zeros((5, 5))})]},
    "samples of bound rows": {
        "target": ca.CrossEntropy((0, 1, 2)),
        "attributions": [ca.GradientShap(inputs=("x",), baselines={"x": np.zeros((2, 4), np.float32)})]},
    "no classes": {"explain_if": ca.ExplainIf(probability_at_least=0.5)},
    "references without a check": {
        "attributions": [ca.Saliency(inputs=("x",))], "check": ca.CheckRequest(ca.CheckMode.OFF, references=True)},
    "edit of nothing": {"edits": [ca.Zero("nowhere")]},
    "edit of a call": {"edits": [ca.Zero("head", call=4)]},
    "edit of an operator": {"edits": [ca.Zero(op=":tanh#0", at="grad_output")]},
    "edit of gradients of ids": {"edits": [ca.Zero("words", at="grad_input")]},
}  # fmt: skip


@pytest.mark.parametrize("asked", BAD.values(), ids=BAD)
def test_bad_request_is_refused_as_it_would_be(asked: dict[str, Any]) -> None:
    """What is wrong with a question its dry run says: the same reason, field and words."""
    net = worker(Net())
    dry, real = (outcome(*net.answer([row(INPUTS, dry_run=each, **asked)])) for each in (True, False))
    assert isinstance(real, ca.CutawayError)
    assert isinstance(dry, ca.CutawayError)
    assert (dry.reason, dry.field, dry.message) == (real.reason, real.field, real.message)


def test_dry_run_is_one_forward_pass_and_nothing_else() -> None:
    """Whatever is asked, the model runs once, and what comes back is the estimate, with no tensor in it."""
    asked: dict[str, Any] = {
        **QUESTIONS["several targets"],
        "attributions": QUESTIONS["explained by a neuron"]["attributions"],
    }
    net = Net()
    served = worker(net)
    read(*served.answer([row(INPUTS, dry_run=True, **asked)]))  # the first finds out where rows are
    passes = []
    counter = net.register_forward_hook(lambda *_: passes.append(1))
    found = read(*served.answer([row(INPUTS, dry_run=True, **asked)]))
    counter.remove()
    assert (len(passes), found.provenance.forwards, found.provenance.backwards) == (1, 1, 0)
    assert found.estimate is not None
    assert outlines(found) == {}
    assert found.attributions == ()
    assert found.classes == ()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())


def test_estimate_takes_no_memory() -> None:
    """A reply that nobody could hold, of many terabytes, is estimated like any other: nothing is made of its size."""
    net = nn.Sequential(Through(lambda h: h[:, :1].expand(len(h), 1 << 40)), Through(lambda h: h[:, :4] * 1))
    captures = [ca.Capture("0"), ca.Capture("1", at="grad_input", data_type="bfloat16")]
    dry = worker(net).answer([row({"input": INPUTS["x"]}, dry_run=True, captures=captures)])
    estimate = read(*dry).estimate
    assert estimate is not None
    assert estimate.tensors["capture:0@output"] == Outline("float32", (ROWS, 1 << 40))
    assert estimate.tensors["capture:1@grad_input"] == Outline("bfloat16", (ROWS, 1 << 40))
    assert estimate.reply_bytes > 6 * ROWS << 40


def test_row_that_does_not_qualify_is_in_the_estimate() -> None:
    """Where no row is to be explained there are no values; where one is, all have a place."""
    adapter = Pets()
    inputs = {"image": torch.rand(2, 1, 8, 8)}
    for bound in (0.0, 1.0):
        asked: dict[str, Any] = {
            "attributions": [ca.Saliency()],
            "explain_if": ca.ExplainIf(probability_at_least=bound),
        }
        estimate, result, size = compared(adapter, inputs, **asked)
        assert dict(estimate.tensors) == outlines(result)
        assert close(estimate.reply_bytes, size)


def test_estimate_warns_as_far_as_one_pass_tells() -> None:
    """A module that the reply would lack is named, and an edit of values that changes nothing; of an edit of gradients
    nothing is said, because nothing is known."""
    edits = [ca.Zero("head", at="grad_output"), ca.Scale("head", factor=1.0)]
    found = read(*worker(Net()).answer([row(INPUTS, dry_run=True, captures=["*"], input_gradients=True, edits=edits)]))
    assert [(each.code, each.subject) for each in found.warnings] == [
        (WarningCode.MODULE_NOT_CALLED, "never"),
        (WarningCode.EDIT_WITHOUT_EFFECT, "edits[1]"),
    ]


def test_dry_run_stops_where_the_request_would() -> None:
    """What lies behind the last capture is as little the estimate's business as the reply's, even if it fails."""

    def fail(_: Tensor) -> None:
        raise ValueError("never reached")

    net = nn.Sequential(nn.Linear(4, 3), Through(fail))
    captures = [ca.Capture("0", call=0)]
    estimate, result, size = compared(net, {"input": INPUTS["x"]}, captures=captures, predictions=False)
    assert dict(estimate.tensors) == outlines(result) == {"capture:0@output": Outline("float32", (ROWS, 3))}
    assert close(estimate.reply_bytes, size)


def test_dry_run_in_a_batch_leaves_the_others_alone() -> None:
    """An estimate and an answer may be asked for at once."""
    net = worker(Net())
    asked: dict[str, Any] = {"captures": [ca.Capture("head", at=("output", "grad_output"))]}
    dry, real = map(read, net.answer([row(INPUTS, dry_run=dry_run, **asked) for dry_run in (True, False)]))
    assert (dry.provenance.backwards, real.provenance.backwards) == (0, 1)
    assert dry.estimate is not None
    assert dict(dry.estimate.tensors) == outlines(real)
    assert real.estimate is None


def test_estimate_through_a_server_and_on_the_command_line(tmp_path: Any) -> None:
    """Over gRPC the estimate arrives as it is; ``cutaway inspect --dry-run`` shows place, type, shape and size."""
    image = tmp_path / "image.npy"
    np.save(image, np.zeros((2, 1, 8, 8), np.float32))
    with serve({"pets": Pets()}) as server:
        with ca.Client(server.address) as client:
            asked: dict[str, Any] = {"captures": ["conv"], "reply_data_type": "float16"}
            found = client.inspect("pets", {"image": np.load(image)}, dry_run=True, **asked).estimate
        words = ["--capture", "conv", "--dry-run", "--reply-dtype", "float16", "--compress"]
        text = squeezed(said("inspect", "pets", image, *words, "--address", server.address, columns=160))
    assert found is not None
    assert found.tensors["capture:conv@output"] == Outline("float16", (2, 4, 6, 6))
    assert "capture:conv@output float16[2, 4, 6, 6] 576" in text
    assert f"about {found.reply_bytes:,} bytes in all" in text
