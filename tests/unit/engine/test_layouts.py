"""Tensors that are no plain arrays: what comes back is what the same network of plain tensors returns, or words.

Every kind of tensor is put into every place of a small graph network: a buffer, an attribute, a parameter, and what one
layer hands to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import cutaway as ca
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import Wired, ask, noise
from tests.support.reply_equality import differences

NODES = 6
EDGES = (noise(NODES, NODES).abs() + torch.eye(NODES)).where(noise(NODES, NODES, seed=2) > 0, 0.0).fill_diagonal_(1.0)
X = {"x": noise(1, NODES, 3, seed=3)}


class Renamed(Tensor):
    """A class of tensors with a name of its own."""


class Holder(Tensor):
    """A class of tensors that computes with a tensor that it holds, as those of torchao do."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Holder:
        """Makes a tensor without memory."""
        made: Holder = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.held = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Names the tensor that it holds."""
        return ["held"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Computes with the tensors that are held."""
        args, kwargs = tree_map(lambda one: one.held if isinstance(one, Holder) else one, (args, kwargs or {}))
        result = func(*args, **kwargs)
        keeps_class = func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default)
        return Holder(result) if keeps_class else result


class Unnamed(Holder):
    """As the other one, but it does not tell what it holds."""

    __tensor_flatten__ = None  # type: ignore[assignment]


class Kind(NamedTuple):
    """A kind of tensor: how one is made of an array, and how the network makes an array of it."""

    make: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor] = Tensor.to_dense


def twice(array: Tensor) -> Tensor:
    """A sparse tensor that has each element in two halves."""
    sparse = array.to_sparse()
    halves = sparse.values() / 2
    return torch.sparse_coo_tensor(torch.cat([sparse.indices()] * 2, 1), torch.cat([halves, halves]), array.shape)


KINDS = {
    "sparse": Kind(Tensor.to_sparse),
    "sparse, not coalesced": Kind(twice),
    "hybrid": Kind(lambda array: array.to_sparse(1)),
    "compressed rows": Kind(Tensor.to_sparse_csr),
    "compressed columns": Kind(Tensor.to_sparse_csc),
    "blocks by row": Kind(lambda array: array.to_sparse_bsr((2, 3))),
    "blocks by column": Kind(lambda array: array.to_sparse_bsc((2, 3))),
    "of oneDNN": Kind(Tensor.to_mkldnn),
    "a subclass": Kind(lambda array: array.clone().as_subclass(Renamed), lambda tensor: tensor),
    "a subclass that holds another": Kind(lambda array: Holder(array.clone()), lambda tensor: tensor * 1.0),
}
GRAPHLESS = {"a subclass that holds another"}
"""Kinds that leave the graph when they are made."""
PLAIN = Kind(Tensor.clone, lambda tensor: tensor)
PLACES = ("buffer", "attribute", "parameter", "layer")


class Use(nn.Module):
    """A layer that takes node features, and edges of some kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(3, 5), kind

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Mixes the features of neighbours."""
        return (self.kind.read(edges) @ self.linear(x)).tanh()


class Make(nn.Module):
    """A layer that returns edges of some kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(3, NODES), kind

    def forward(self, x: Tensor) -> Tensor:
        """Makes edges of the features."""
        return self.kind.make(self.linear(x[0]).sigmoid())


class Network(nn.Module):
    """A graph network whose edges are of ``kind``, at ``place``."""

    def __init__(self, kind: Kind, place: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.use, self.head, self.make = Use(kind), nn.Linear(5, 2), Make(kind) if place == "layer" else None
        if place == "buffer":
            self.register_buffer("edges", kind.make(EDGES))
        elif place != "layer":
            edges = kind.make(EDGES)
            self.edges = nn.Parameter(edges, requires_grad=False) if place == "parameter" else edges

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits of the graph."""
        edges = self.make(x) if self.make else self.edges
        out: Tensor = self.head(self.use(x, edges)).mean(1)
        return out


def asked(model: nn.Module, *attributions: Any, **more: Any) -> InspectResult:
    """Asks for class 1."""
    return ask(model.eval(), X, *attributions, **{"target": ca.ClassIndex((1,)), **more})


QUESTIONS: dict[str, Callable[[nn.Module], InspectResult]] = {
    "gradients": lambda model: asked(model, input_gradients=()),
    "captures": lambda model: asked(model, captures=(ca.Capture("use", at=("input", "output", "grad_output")),)),
    "a slice": lambda model: asked(model, captures=(ca.Capture("use", at="input", slices=(ca.Slice(-1, 0, 2),)),)),
    "scaled": lambda model: asked(model, edits=(ca.Scale("use", at="input", factor=0.5),), input_gradients=()),
    "added": lambda model: asked(model, edits=(ca.Add("use", at="input", path="[1]", addend=0.5),)),
    "set to 0": lambda model: asked(model, edits=(ca.Zero("use", at="input", path="[1]"),)),
    "a part clamped": lambda model: asked(
        model, edits=(ca.Clamp("use", at="input", path="[1]", maximum=0.1, slices=(ca.Slice(0, 0, 2),)),)
    ),
    "explained": lambda model: asked(
        model, ca.Saliency(), ca.IntegratedGradients(n_steps=20), ca.LayerActivation(layer="use")
    ),
    "explained apart": lambda model: asked(
        model, ca.InputXGradient(), ca.LayerGradientXActivation(layer="use"),
        check=ca.CheckRequest(CheckMode.INDEPENDENT),
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_the_same_network_of_plain_tensors(name: str, place: str, question: str) -> None:
    """Predictions, gradients, captures, edits, attributions and verdicts; the model is as before, to the bit."""
    if name in GRAPHLESS and place == "layer" and question not in ("set to 0",):
        pytest.skip("the gradient ends where the tensor is made, by its own class")
    model = Network(KINDS[name], place)
    before = {key: (id(tensor), KINDS[name].read(tensor.clone()).clone()) for key, tensor in model.state_dict(
        keep_vars=True).items() if key == "edges"}  # fmt: skip
    answer = QUESTIONS[question](model)
    assert not [*differences(answer, QUESTIONS[question](Network(PLAIN, place)), 2e-5)]
    for key, (identity, values) in before.items():
        after = model.state_dict(keep_vars=True)[key]
        assert id(after) == identity
        assert torch.equal(KINDS[name].read(after), values)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in GRAPHLESS])
def test_gradients_at_a_layer_of_them_are_those_of_plain_tensors(name: str) -> None:
    """As arrays, where they arrive and where they leave, also after an edit of the gradient."""
    for edits in ((), (ca.Scale("use", at="grad_input", path="[1]", factor=3.0),)):
        captures = (ca.Capture("use", at="grad_input"), ca.Capture("make", at=("grad_output", "grad_input")))
        ours, plain = (asked(Network(kind, "layer"), captures=captures, edits=edits) for kind in (KINDS[name], PLAIN))
        assert not [*differences(ours, plain, 2e-5)]


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_every_kind_have_a_digest_of_their_values(name: str) -> None:
    """Equal for equal values, and another one for others."""
    digests = [
        InspectedModel(model, lambda tensors: tensors).weights_sha256
        for model in (Network(KINDS[name], "buffer") for _ in range(3))
    ]
    changed = Network(KINDS[name]._replace(make=lambda array: KINDS[name].make(array * 2)), "buffer")
    assert len({*digests}) == 1
    assert InspectedModel(changed, lambda tensors: tensors).weights_sha256 not in digests


@pytest.mark.parametrize("name", ["sparse", "sparse, not coalesced", "compressed rows", "of oneDNN"])
def test_a_buffer_that_forward_writes_to_is_put_back(name: str) -> None:
    """The second answer is the first one."""

    class Writing(Network):
        def forward(self, x: Tensor) -> Tensor:
            self.edges.mul_(2.0)
            return super().forward(x)

    model = Writing(KINDS[name], "buffer").eval()
    subject = InspectedModel(model, lambda tensors: model(**tensors))
    runs = []
    for _ in range(2):
        with subject.session():
            runs.append(subject.run(dict(X))["output"].detach())
    assert torch.equal(*runs)
    assert torch.equal(model.edges.to_dense(), EDGES)


@pytest.mark.parametrize("name", [*KINDS])
def test_an_output_comes_as_an_array(name: str) -> None:
    """With its values, and as a target of gradients."""

    def build(kind: Kind) -> nn.Module:
        return Wired(lambda _, x: kind.make((x[0] @ x[0].T)[:2] * EDGES[:2]))

    inputs = {"x": noise(2, NODES, 3, seed=3)}
    ours, plain = (ask(build(kind), inputs) for kind in (KINDS[name], PLAIN))
    assert not [*differences(ours.predictions, plain.predictions, 1e-6)]


def test_the_gradient_of_an_embedding_is_an_array_and_its_rows_can_be_cut() -> None:
    """``sparse=True`` makes the gradient a sparse tensor: a slice has the rows that it names."""
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
    model = nn.Sequential(bag, nn.Linear(4, 2))
    ids = torch.tensor([[3, 3, 5]])
    expected = torch.autograd.grad(model(ids)[0, 1], bag.weight)[0].to_dense()
    captures = (ca.Capture(parameter="0.weight", slices=(ca.Slice(0, 2, 6),)),)
    answer = ask(model, {"input": ids}, captures=captures, target=ca.ClassIndex((1,)))
    assert np.array_equal(answer.parameter_gradients["0.weight"], expected[2:6].numpy())


NESTED = {
    "strided": lambda array: torch.nested.nested_tensor([*array]),
    "jagged": lambda array: torch.nested.as_nested_tensor([*array], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("place", PLACES[:3])
@pytest.mark.parametrize("layout", NESTED)
def test_a_nested_tensor_inside_is_no_array_and_told_of(layout: str, place: str) -> None:
    """It has rows of several lengths: what is beside it is answered, and a warning names what is left out."""
    kind = Kind(NESTED[layout], lambda tensor: tensor.to_padded_tensor(0.0))
    attributions = (ca.IntegratedGradients(n_steps=20), ca.LayerGradientXActivation(layer="use"))
    ours, plain = (asked(Network(each, place), *attributions, input_gradients=()) for each in (kind, PLAIN))
    assert not [*differences(ours, plain, 2e-5)]
    captured = asked(Network(kind, place), captures=(ca.Capture("use", at="input"),))
    assert list(captured.captures["use"].calls[0].leaves[ca.Point.INPUT]) == ["[0]"]
    assert [(str(each.code), each.subject) for each in captured.warnings] == [("NOT_A_TENSOR", "use")]
    assert "the input [1] of 'use' is nested" in captured.warnings[0].message
    edited = asked(Network(kind, place), edits=(ca.Zero("use", at="input", path="[1]"),))
    assert "the input of 'use' is nested" in edited.warnings[0].message


def test_a_nested_output_is_refused_with_what_to_return() -> None:
    """The model's owner learns which output it is."""
    model = nn.Module()
    model.forward = lambda x: {"logits": x, "ragged": torch.nested.as_nested_tensor([*x], layout=torch.jagged)}
    with pytest.raises(ca.InvalidArgument, match=r"'ragged' is a nested tensor.*to_padded_tensor") as caught:
        ask(model, {"x": noise(2, 3)})
    assert caught.value.reason == "MODEL_FAILED"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quantised_tensor_is_sent_with_the_values_that_it_stands_for() -> None:
    """It has no gradient and takes no edit, and says so."""
    kind = Kind(lambda array: torch.quantize_per_tensor(array, 0.01, 3, torch.quint8), Tensor.dequantize)
    for place in PLACES[:3]:
        seen = asked(Network(kind, place), captures=(ca.Capture("use", at="input"),))
        assert np.array_equal(
            seen.captures["use"].calls[0].leaves[ca.Point.INPUT]["[1]"], kind.make(EDGES).dequantize()
        )
        with pytest.raises(ca.InvalidArgument, match=r"Zero needs floating numbers; the value is torch.quint8"):
            asked(Network(kind, place), edits=(ca.Zero("use", at="input", path="[1]"),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_prepared_for_quantisation_is_explained() -> None:
    """Quantisation-aware training rounds in the forward pass, and passes gradients straight through."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    prepared = torch.ao.quantization.prepare_qat(model.train())
    prepared(noise(32, 3))
    prepared = prepared.eval().apply(torch.ao.quantization.disable_observer)
    x = noise(2, 3, seed=4).requires_grad_()
    (expected,) = torch.autograd.grad(prepared(x)[:, 1].sum(), x)
    subject = InspectedModel(prepared, lambda tensors: prepared(**tensors))
    request = ca.InspectRequest("m", attributions=(ca.Saliency(),), target=ca.ClassIndex((1,)))
    answer = inspect(subject, request, {"input": x.detach()})
    for module in prepared.modules():
        module._forward_hooks.clear()  # the owner's, which observe
    assert np.allclose(answer.attributions[0].values["input"], expected.abs(), rtol=1e-5)
    assert answer.attributions[0].checks[0].verdict is not Verdict.DISAGREES


@pytest.mark.parametrize("point", list(ca.Point), ids=str)
def test_what_is_inside_vmap_is_said_to_be_no_array(point: ca.Point) -> None:
    """Also of a gradient, which does reach it; a module before it has its own, and no warning."""

    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(self.b)(torch.tanh(self.a(x)))

    captures = (ca.Capture("*", at=point),)
    got = ask(Mapped().eval(), {"x": noise(2, 4)}, captures=captures, target=ca.ClassIndex((1,)))
    assert [(warning.code, warning.subject) for warning in got.warnings] == [(ca.WarningCode.NOT_A_TENSOR, "b")]
    assert str(point) in got.warnings[0].message
    assert list(got.captures["a"].calls[0].leaves) == [point]
