"""Whose operator it is, and by which address it is found."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.contract.requests import Point
from cutaway.contract.results import InputSpec
from cutaway.engine.execution.description import describe
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.gateway import serve
from tests.oracles.hooks import equal
from tests.oracles.operators import EVERY, OUTGOING, POINTS, ROW, VALUES, Block, Probe, Wired, addresses, ask, whole


def test_an_operator_belongs_to_the_module_whose_forward_calls_it() -> None:
    """In the order in which they ran: the model's own by an empty name, none of nn.Sequential's, those of a module that
    is called again under the same addresses."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = m.several(torch.tanh(x))
        return m.head(m.block(m.block(h) * 2) * 3)

    model = Wired(wiring, several=nn.Sequential(nn.ReLU(), nn.Softmax(-1)), block=Block())
    assert addresses(ask(model, ROW, captures=(EVERY,))) == {
        ":tanh#0": 1, "several.0:relu#0": 1, "several.1:softmax#0": 1,
        "block:relu#0": 2, "block.inner:linear#0": 2, "block:relu#1": 2, "block:add#0": 2,
        ":mul#0": 1, ":mul#1": 1, "head:linear#0": 1,
    }  # fmt: skip


def test_each_call_of_a_module_has_its_operators() -> None:
    """Calls are told apart, by values, gradients and edits."""

    def wiring(m: Any, x: Tensor, p: Probe | None = None) -> Tensor:
        for _ in range(3):
            x = m.block(x)
        return m.head(x)

    seen = ask(Wired(wiring, block=Block()), ROW, captures=(ca.Capture(op="block:add#0", at=POINTS),))
    calls = seen.captures["block:add#0"].calls
    assert len(calls) == 3
    block, h = Block(), ROW["x"]
    for call in calls:
        assert equal(call.leaves[Point.INPUT]["[1]"], h)
        h = block(h).detach()
        assert equal(call.output, h)
    for earlier, later in itertools.pairwise(calls):  # a block gives its input to a relu too
        assert equal(earlier.output, torch.from_numpy(later.leaves[Point.INPUT]["[1]"]))
        assert not np.array_equal(earlier.grad_output, later.grad_output)
    second = ask(Wired(wiring, block=Block()), ROW, edits=(ca.Scale(op="block:add#0", factor=2.0, call=1),))
    made: Any = Wired(wiring, block=Block())
    expected = made.head(made.block(made.block(made.block(ROW["x"])) * 2))
    assert equal(second.predictions["output"], expected)


def test_a_loop_has_as_many_operators_as_it_runs() -> None:
    """A loop whose length the input decides; the address of a step that did not run is unknown for this input."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        for _ in range(int(x.sum().abs()) % 5 + 1):
            x = torch.tanh(m.a(x))
        return m.head(x)

    for total in (0.0, 3.0):
        inputs = {"x": torch.full((2, 4), total / 8)}
        ran = addresses(ask(Wired(wiring), inputs, captures=(ca.Capture(op=":tanh#*"),)))
        assert ran == {f":tanh#{step}": 1 for step in range(int(total) + 1)}
    with pytest.raises(ca.InvalidArgument, match=r":tanh#4.*nearest: :tanh#"):
        ask(Wired(wiring), inputs, captures=(ca.Capture(op=":tanh#4"),))


def test_a_parametrization_has_operators_of_its_own() -> None:
    """Weight normalisation runs inside a module of its own: its weight can be seen and changed there."""

    def build() -> Wired:
        model = Wired(lambda m, x: m.head(m.a(x)))
        nn.utils.parametrizations.weight_norm(model.a)
        return model

    (op,) = [name for name in addresses(ask(build(), ROW, captures=(EVERY,))) if name.startswith("a.parametrizations")]
    model = build()
    weight = model.a.weight.detach()
    assert equal(ask(build(), ROW, captures=(ca.Capture(op=op),)).captures[op].output, weight)
    edited = ask(build(), ROW, edits=(ca.Scale(op=op, factor=2.0),))
    assert equal(edited.predictions["output"], model.head(F.linear(ROW["x"], weight * 2, model.a.bias)))


def test_what_runs_without_a_graph_has_values_and_no_gradient() -> None:
    """Under torch.no_grad an operator is seen and edited; its gradient is missing with a warning."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.relu(m.a(x))
        return m.head(h)

    made = Wired(wiring)
    result = ask(Wired(wiring), ROW, captures=(ca.Capture(op=":relu#0", at=POINTS),))
    assert equal(result.captures[":relu#0"].output, torch.relu(made.a(ROW["x"])))
    assert [str(warning.code) for warning in result.warnings] == ["NO_GRADIENT"] * 2
    edited = ask(Wired(wiring), ROW, edits=(ca.Scale(op=":relu#0", factor=2.0),))
    assert equal(edited.predictions["output"], made.head(torch.relu(made.a(ROW["x"])) * 2))


def test_an_operator_that_raises_and_is_caught_keeps_its_number() -> None:
    """A failed attempt has what it was given, and no output; the one that is run instead is the next."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        try:
            return m.head(torch.matmul(h, torch.ones(5, 5)))
        except RuntimeError:
            return m.head(torch.matmul(h, torch.eye(4)))

    assert ":matmul#1" in addresses(ask(Wired(wiring), ROW, captures=(EVERY,)))
    made = Wired(wiring)
    for op, size in ((":matmul#0", 5), (":matmul#1", 4)):
        result = ask(Wired(wiring), ROW, captures=(ca.Capture(op=op, at="input"),))
        inputs = result.captures[op].calls[0].leaves[Point.INPUT]
        assert equal(inputs["[0]"], made.a(ROW["x"]))
        assert inputs["[1]"].shape == (size, size)
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(Wired(wiring), ROW, captures=(ca.Capture(op=":matmul#0"),))
    assert (caught.value.reason, caught.value.field) == ("POINT_NOT_FOUND", "captures[0].points")


class Picky(nn.Module):
    """Runs an operator, and then raises."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(str(torch.tanh(x).shape))


def test_a_module_that_raises_leaves_the_operators_behind_it_to_their_own() -> None:
    """What runs after a failed module is its parent's."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        try:
            return m.picky(x)
        except ValueError:
            return m.head(torch.relu(m.a(x)))

    ran = addresses(ask(Wired(wiring, picky=Picky()), ROW, captures=(EVERY,)))
    assert list(ran) == ["picky:tanh#0", "a:linear#0", ":relu#0", "head:linear#0"]


def test_what_returns_no_tensor_is_no_operator() -> None:
    """Sizes, types and numbers are asked for all the time: they have no address, and shift none."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        scale = float(h.detach().abs().max().item() > 0) + h.size(0) / len(h) * h.dim() - int(h[0, 0].isnan())
        return m.head(h.float() * scale if h.is_floating_point() else h.clone())

    ran = list(addresses(ask(Wired(wiring), ROW, captures=(ca.Capture(op="**:*#*", at=POINTS),))))
    assert ran == [
        "a:linear#0", ":abs#0", ":max#0", ":getitem#0", ":isnan#0", ":float#0", ":mul#0", "head:linear#0",
    ]  # fmt: skip
    for op in (":size#0", ":item#0", ":detach#0", ":storage_offset#0"):
        with pytest.raises(ca.InvalidArgument, match="OP_NOT_FOUND"):
            ask(Wired(wiring), ROW, captures=(ca.Capture(op=op, at="input"),))


def test_what_returns_a_tensor_only_at_times_is_counted_when_it_does() -> None:
    """``x.type()`` is a word, ``x.type(dtype)`` a tensor."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.head(h.type(h.type()).type(torch.float64).type(h.type()))

    assert list(addresses(ask(Wired(wiring), ROW, captures=(EVERY,)))) == [
        "a:linear#0", ":type#0", ":type#1", ":type#2", "head:linear#0",
    ]  # fmt: skip
    seen = ask(Wired(wiring), ROW, captures=(ca.Capture(op=":type#2", at=VALUES),)).captures[":type#2"]
    assert len(seen.calls) == 1
    assert [call.leaves[Point.INPUT]["[0]"].dtype for call in seen.calls] == [np.float64]


def shared_build() -> Wired:
    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.head(m.other(torch.relu(m.block(x))))

    model = Wired(wiring, block=Block())
    model.add_module("other", model.get_submodule("block"))
    return model


def test_an_operator_of_a_shared_module_has_one_address() -> None:
    """Any of the module's names does; the reply has its own, and both calls."""
    for name in ("block", "other"):
        result = ask(shared_build(), ROW, captures=(ca.Capture(op=f"{name}:add#0"),))
        assert addresses(result) == {"block:add#0": 2}
    by_alias, by_name = (
        ask(shared_build(), ROW, edits=(ca.Scale(op=f"{name}:add#0", factor=2.0, call=1),))
        for name in ("other", "block")
    )
    assert equal(by_alias.predictions["output"], torch.from_numpy(by_name.predictions["output"]))


MATCHES = {
    "**:relu#*": ["block:relu#0", "block:relu#1", ":relu#0", ":relu#1"],
    "*:relu#0": ["block:relu#0", ":relu#0"],
    ":relu#?": [":relu#0", ":relu#1"],
    "block**:linear#0": ["block.inner:linear#0"],
    "block:*#0": ["block:relu#0", "block:add#0"],
    ":*_#0": [":add_#0"],
}


@pytest.mark.parametrize(("glob", "matches"), MATCHES.items())
def test_a_glob_stands_for_several_addresses(glob: str, matches: list[str]) -> None:
    """``*`` within one part of a module's name, ``**`` across its parts, and in the operator's name and number."""
    assert list(addresses(ask(Wired(whole, block=Block()), ROW, captures=(ca.Capture(op=glob),)))) == matches


EXAMPLE = "layer3.1:relu#0"

UNKNOWN = {
    "no such number": ("block:relu#2", "OP_NOT_FOUND", "block:relu#"),
    "no such name": ("block:rleu#0", "OP_NOT_FOUND", "nearest: block:relu#0"),
    "no such module": ("blok:relu#0", "MODULE_NOT_FOUND", "nearest: block"),
    "no module": ("relu#0", "OP_NOT_FOUND", EXAMPLE),
    "no number": ("block:relu", "OP_NOT_FOUND", EXAMPLE),
    "an empty number": ("block:relu#", "OP_NOT_FOUND", EXAMPLE),
    "a negative number": ("block:relu#-1", "OP_NOT_FOUND", EXAMPLE),
    "no name": ("block:#0", "OP_NOT_FOUND", EXAMPLE),
    "a dot for a colon": ("block.relu#0", "OP_NOT_FOUND", EXAMPLE),
    "a module": ("block", "OP_NOT_FOUND", EXAMPLE),
    "a glob that matches nothing": ("**:gelu#*", "OP_NOT_FOUND", ""),
    "a glob of another part": ("block*:linear#0", "OP_NOT_FOUND", ""),
    "a glob of modules": ("block*", "OP_NOT_FOUND", EXAMPLE),
    "a glob of everything": ("**", "OP_NOT_FOUND", EXAMPLE),
    "a glob without a number": ("**:relu", "OP_NOT_FOUND", EXAMPLE),
    "a glob without a colon": ("*#0", "OP_NOT_FOUND", EXAMPLE),
}


@pytest.mark.parametrize(("op", "reason", "hint"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_address_that_names_nothing_is_refused_with_what_is_near(op: str, reason: str, hint: str) -> None:
    """The reason, the field, and what would be right; for captures and for edits, which take no glob."""
    for asked in ({"captures": (ca.Capture("a"), ca.Capture(op=op))}, {"edits": (ca.Zero("a"), ca.Zero(op=op))}):
        if "edits" in asked and "*" in op:
            reason, hint = "INVALID_VALUE", "no glob"
        with pytest.raises(ca.InvalidArgument) as caught:
            ask(Wired(whole, block=Block()), ROW, **asked)
        assert (caught.value.reason, caught.value.field) == (reason, f"{next(iter(asked))}[1].op")
        assert hint in caught.value.message


@pytest.mark.parametrize(
    "captures",
    [
        (ca.Capture(op=":relu#0"), ca.Capture(op="**:relu#*", reduce=ca.Mean((1,)))),
        (ca.Capture(op="**:relu#*"), ca.Capture(op=":relu#*", slices=(ca.Slice(0, 0, 1),))),
        (ca.Capture(op=":relu#0", call=0), ca.Capture(op="**:relu#*", at="input")),
    ],
)
def test_an_operator_captured_in_two_ways_is_refused(captures: tuple[ca.Capture, ...]) -> None:
    """Also where one of the two, or both, came by a glob."""
    with pytest.raises(ca.InvalidArgument, match="captured twice") as caught:
        ask(Wired(whole, block=Block()), ROW, captures=captures)
    assert caught.value.reason == "INVALID_VALUE"


def test_one_operator_asked_for_twice_in_the_same_way_comes_once() -> None:
    """By its address and by a glob, at several points."""
    captures = (ca.Capture(op="**:relu#*"), ca.Capture(op=":relu#0", at=("output", "grad_output")))
    result = ask(Wired(whole, block=Block()), ROW, captures=captures)
    assert set(result.captures[":relu#0"].calls[0].leaves) == set(OUTGOING)


@pytest.mark.parametrize("name", ["a:b", "c#1", "with space", "ünïcode", "p:q#r", "Σ", "new\nline"])
def test_a_module_may_have_any_name(name: str) -> None:
    """An address is cut at its last colon."""

    def build() -> Wired:
        return Wired(lambda m, x: m.head(m._modules[name](m.a(x))), **{name: Block()})

    made = build()
    op = f"{name}:add#0"
    result = ask(build(), ROW, captures=(ca.Capture(op=op, at=POINTS),), edits=(ca.Scale(op=op, factor=2.0),))
    assert equal(result.captures[op].output, made._modules[name](made.a(ROW["x"])) * 2)  # type: ignore[misc]
    assert addresses(ask(build(), ROW, captures=(ca.Capture(op="**:add#*"),))) == {op: 1}


class Served(Adapter):
    """A model with operators, and an example to run."""

    inputs = (InputSpec("x", "float32", (-1, 4)),)

    def build(self) -> nn.Module:
        return Wired(whole, block=Block())


def test_a_server_lists_operators_and_takes_their_addresses() -> None:
    """In the order in which they ran, with shapes and numbers of calls; each address can be captured and edited."""
    with serve({"net": Served()}) as server, ca.Client(server.address) as client:
        assert client.get_model("net").operators == ()
        listed = client.get_model("net", operators=True).operators
        assert [(each.address, each.output_shapes, each.calls) for each in listed][:5] == [
            ("a:linear#0", ((1, 4),), 1), ("block:relu#0", ((1, 4),), 1), ("block.inner:linear#0", ((1, 4),), 1),
            ("block:relu#1", ((1, 4),), 1), ("block:add#0", ((1, 4),), 1),
        ]  # fmt: skip
        for each in listed:
            edit = ca.Scale(op=each.address, factor=1.0)
            result = client.inspect("net", ROW, captures=[ca.Capture(op=each.address, at=POINTS)], edits=[edit])
            assert list(result.captures) == [each.address]
            assert set(result.captures[each.address].calls[0].leaves) == set(POINTS)


def test_a_glob_matches_any_name_of_a_shared_module() -> None:
    """As globs of modules do; the reply has the module's own name."""
    assert addresses(ask(shared_build(), ROW, captures=(ca.Capture(op="oth*:add#0"),))) == {"block:add#0": 2}


def test_a_model_with_such_a_name_is_described() -> None:
    """With and without its operators."""
    model = Wired(lambda m, x: m.head(m._modules["p:q#0"](m.a(x))), **{"p:q#0": Block()})
    table = InspectedModel(model, lambda inputs: model(inputs["x"]))
    for operators in (False, True):
        modules, _, _ = describe(table, ROW, operators=operators)
        assert [each.name for each in modules] == [name for name, _ in model.named_modules()]


@pytest.mark.xfail(reason="a gap: such a name is taken for an operator, and refused")
def test_a_module_whose_name_looks_like_an_address_is_a_module() -> None:
    """PyTorch allows any name without a dot."""
    name = "p:q#0"
    model = Wired(lambda m, x: m.head(m._modules[name](m.a(x))), **{name: Block()})
    result = ask(model, ROW, captures=(ca.Capture(name, at=POINTS),))
    assert set(result.captures[name].calls[0].leaves) == set(POINTS)


@pytest.mark.parametrize("glob_first", [False, True])
def test_a_glob_beside_an_address_hides_no_error_of_it(glob_first: bool) -> None:
    """A place named by its address must be given, or be an error; a glob takes what there is."""

    class Compared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, x * 2, x)

    captures = [ca.Capture(op=":gt#0", at="grad_output"), ca.Capture(op="**:*#*", at="grad_output")]
    model = Compared()
    subject = InspectedModel(model, lambda inputs: model(inputs["x"]))
    request = ca.InspectRequest("m", captures=tuple(captures[::-1] if glob_first else captures), target=ca.OutputSum())
    with pytest.raises(ca.InvalidArgument, match="POINT_NOT_DIFFERENTIABLE") as caught:
        inspect(subject, request, {"x": torch.ones(1, 2)})
    assert caught.value.field == f"captures[{int(glob_first)}].points"
