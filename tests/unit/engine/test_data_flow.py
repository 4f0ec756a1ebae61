"""Which part of a model gives a tensor to which: against edges written by hand, and against torch.fx."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import FailedPrecondition
from cutaway.engine.execution.description import trace_data_flow
from cutaway.engine.model.inspected_model import InspectedModel
from tests.oracles.hooks import noise
from tests.support.checked_attributions import Wired
from tests.support.state_snapshot import State
from tests.unit.engine.test_transformers_models import inputs_of, loaded

Edges = set[tuple[str, str]]

IMAGE = {"x": noise(2, 3, 8, 8)}
ROW = {"x": noise(2, 4)}


def flow(model: InspectedModel, inputs: Mapping[str, Tensor]) -> Edges:
    """The edges, with the model's inputs and outputs in brackets."""
    edges = trace_data_flow(model, dict(inputs))
    assert len(set(edges)) == len(edges)
    return {
        (f"<{edge.input}>" if edge.input else edge.source, f"<{edge.output}>" if edge.output else edge.target)
        for edge in edges
    }


def traced(module: nn.Module, inputs: Mapping[str, Tensor] = ROW) -> Edges:
    """The edges of a module's pass."""
    return flow(InspectedModel(module.eval(), lambda given: module(**given)), inputs)


def wired(wiring: Callable[..., Any], inputs: Mapping[str, Tensor] = ROW, **parts: nn.Module) -> Edges:
    """The edges of a forward written in the test."""
    return traced(Wired(wiring, **parts), inputs)


class Residual(nn.Module):
    """A residual block as networks have it: a shortcut that may be the input, in-place sums and rectifiers."""

    def __init__(self, width: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1)
        self.bn1, self.relu, self.drop = nn.BatchNorm2d(out), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1)
        self.down = nn.Conv2d(width, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Adds what the convolutions find to the shortcut."""
        kept = self.down(x)
        found = self.conv2(self.drop(F.relu(self.bn1(self.conv1(x)))))
        found += kept
        return self.relu(found)


class Residuals(nn.Module):
    """Two residual blocks between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 4, 3), nn.Sequential(Residual(4, 4), Residual(4, 6, stride=2))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits."""
        return self.head(torch.flatten(self.blocks(self.stem(x)).mean((2, 3)), 1))


def test_a_residual_net_by_hand() -> None:
    """Two edges arrive where a shortcut is added, and dropout, which returns what it takes, stands on its own path."""
    expected = {("<x>", "stem:conv2d#0"), ("blocks.1.relu:relu#0", ":mean#0"), (":mean#0", ":flatten#0")}
    expected |= {(":flatten#0", "head:linear#0"), ("head:linear#0", "<output>")}
    shortcuts = {"blocks.0": "blocks.0.down", "blocks.1": "blocks.1.down:conv2d#0"}
    for block, before in {"blocks.0": "stem:conv2d#0", "blocks.1": "blocks.0.relu:relu#0"}.items():
        path = [
            before, f"{block}.conv1:conv2d#0", f"{block}.bn1:batch_norm#0", f"{block}:relu#0",
            f"{block}.drop:dropout#0", f"{block}.conv2:conv2d#0", f"{block}:add_#0", f"{block}.relu:relu#0",
        ]  # fmt: skip
        expected |= {*itertools.pairwise(path), (before, shortcuts[block]), (shortcuts[block], f"{block}:add_#0")}
    assert traced(Residuals(), IMAGE) == expected


def by_fx(module: nn.Module) -> Edges:
    """The edges between layers and functions as torch.fx traces them, without running the model on numbers."""
    graph, names, numbers = fx.symbolic_trace(module).graph, dict[fx.Node, str](), Counter[str]()
    edges: Edges = set()
    for node in graph.nodes:
        if node.op == "call_module":
            names[node] = str(node.target)
        elif node.op in ("call_function", "call_method"):
            owner = next(reversed(node.meta.get("nn_module_stack") or {"": None}))
            name = node.target if isinstance(node.target, str) else node.target.__name__
            key = f"{owner}:{'add_' if name == 'add' else name}"  # a proxy of torch.fx cannot add in place
            names[node] = f"{key}#{numbers[key]}"
            numbers[key] += 1
        else:
            names[node] = f"<{node.name}>"
        edges |= {(names[given], names[node]) for given in node.all_input_nodes}
    return edges


def test_the_edges_are_those_of_torch_fx() -> None:
    """Between layers, whose operators are drawn together, and the functions of other modules."""
    module = Residuals().eval()
    layers = {name for name, part in module.named_modules() if name and not [*part.children()]}

    def part(name: str) -> str:
        owner = name.rpartition(":")[0]
        return owner if owner in layers else name

    assert {(part(one), part(other)) for one, other in traced(module, IMAGE)} == by_fx(module)


def test_two_inputs_and_several_outputs() -> None:
    """Each input and each output is an end of its own; one that no part takes has no edge."""

    def wiring(m: Any, left: Tensor, right: Tensor, unused: Tensor) -> dict[str, Any]:
        joined = torch.cat([m.a(left), m.a(right)], 1)
        return {"sum": joined.sum(1), "both": (joined, left)}

    inputs = {"left": noise(2, 4), "right": noise(2, 4), "unused": noise(2, 4)}
    assert wired(wiring, inputs, a=nn.Linear(4, 4)) == {
        ("<left>", "a:linear#0"), ("<right>", "a:linear#0"), ("a:linear#0", ":cat#0"), (":cat#0", ":sum#0"),
        (":sum#0", "<sum>"), (":cat#0", "<both[0]>"), ("<left>", "<both[1]>"),
    }  # fmt: skip


def test_a_write_reaches_all_that_share_its_memory() -> None:
    """Through a view, into one, and not what lies beside it."""

    def wiring(m: Any, x: Tensor) -> tuple[Tensor, ...]:
        kept = torch.zeros(2, 4)
        first, second = kept[0], kept[1]
        first.add_(x[0])
        whole = x * 2
        whole.view(-1).relu_()
        return first * 1, second * 1, kept * 1, whole * 1

    assert wired(wiring) == {
        (":zeros#0", ":getitem#0"), (":zeros#0", ":getitem#1"), ("<x>", ":getitem#2"), (":getitem#0", ":add_#0"),
        (":getitem#2", ":add_#0"), ("<x>", ":mul#0"), (":mul#0", ":view#0"), (":view#0", ":relu_#0"),
        (":add_#0", ":mul#1"), (":getitem#1", ":mul#2"), (":zeros#0", ":mul#3"), (":add_#0", ":mul#3"),
        (":relu_#0", ":mul#4"), *{(f":mul#{number}", f"<output[{number - 1}]>") for number in (1, 2, 3, 4)},
    }  # fmt: skip


def test_parameters_and_tensors_of_the_model_come_from_no_part() -> None:
    """Parameters, buffers and attributes; a module that returns one is a part without a source."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(4))

        def forward(self) -> Tensor:
            return self.table

    constant = torch.full((4,), 2.0)
    found = wired(lambda m, x: m.table() + x * constant * m.table.table, table=Table())
    assert found == {("<x>", ":mul#0"), (":mul#0", ":mul#1"), ("table", ":add#0"), (":mul#1", ":add#0"),
                     (":add#0", "<output>")}  # fmt: skip


def test_a_module_that_runs_again_feeds_itself() -> None:
    """Parts are places and not runs: a cell that is called in a loop has an edge to itself."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = m.cell(x)
        return x

    cell = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    assert wired(wiring, cell=cell) == {
        ("<x>", "cell.0:linear#0"), ("cell.0:linear#0", "cell.1:tanh#0"), ("cell.1:tanh#0", "cell.0:linear#0"),
        ("cell.1:tanh#0", "<output>"),
    }  # fmt: skip


class ByNumpy(nn.Module):
    """A layer that computes where PyTorch shows nothing."""

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        """Returns a product by numpy."""
        return torch.from_numpy(x.detach().numpy() * scale.detach().numpy())


def test_a_layer_of_hidden_code_is_a_part() -> None:
    """What goes in, also by keyword, goes to the layer, and what comes out is its own."""
    found = wired(lambda m, x: m.odd(x * 2, scale=x) + x, odd=ByNumpy())
    assert found == {("<x>", ":mul#0"), (":mul#0", "odd"), ("<x>", "odd"), ("odd", ":add#0"), ("<x>", ":add#0"),
                     (":add#0", "<output>")}  # fmt: skip


def test_custom_functions_are_seen_by_the_operators_in_them() -> None:
    """Under the module that calls them."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return Double.apply(x)

    assert wired(lambda m, x: m.twice(x), twice=Doubling()) == {("<x>", "twice:mul#0"), ("twice:mul#0", "<output>")}


@pytest.mark.parametrize(
    ("wiring", "why"),
    [
        (lambda m, x: torch.from_numpy(m.a(x).numpy() * 2) + 1, r"':add#0' takes a tensor float32\[2, 4\] from code"),
        (lambda m, x: torch.from_numpy(m.a(x).numpy() * 2), r"the output 'output' takes a tensor float32\[2, 4\]"),
    ],
)
def test_hidden_code_beside_layers_is_an_error(wiring: Callable[..., Any], why: str) -> None:
    """A graph with a gap would be wrong."""
    with pytest.raises(FailedPrecondition, match=why) as raised:
        wired(wiring, a=nn.Linear(4, 4))
    assert raised.value.reason == "DATA_FLOW_UNKNOWN"


def test_a_hidden_write_is_an_error() -> None:
    """As far as PyTorch counts it."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        torch._C._increment_version([y])
        return y + 1

    with pytest.raises(FailedPrecondition, match=r"wrote into a tensor \[2, 4\]"):
        wired(wiring, a=nn.Linear(4, 4))


def test_without_an_example_there_is_none() -> None:
    """And no empty graph in its place."""
    with pytest.raises(FailedPrecondition, match="no example"):
        trace_data_flow(load_model(TensorAdapter(nn.Linear(2, 2)), "cpu"), None)


def test_computations_outside_of_the_model_join_its_ends() -> None:
    """An adapter's own computation before and behind the model has no address; the tensors pass through it."""
    module = nn.Linear(4, 4)
    model = InspectedModel(module, lambda given: module((given["x"] - 1) / given["by"]).softmax(-1))
    assert flow(model, {"x": noise(2, 4), "by": torch.ones(4)}) == {
        ("<x>", ":linear#0"), ("<by>", ":linear#0"), (":linear#0", "<output>"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "resnet", "longformer", "swinv2", "mamba2", "modernbert"])
def test_models_of_transformers_are_untouched_and_connected(kind: str) -> None:
    """From every input to the output; parameters, hooks and generators are as before, and no pass is counted."""
    model, inputs = loaded(kind), inputs_of(kind)
    before, drawn, counted = State.of(model.module), torch.get_rng_state(), model.passes.forwards
    edges = flow(model, inputs)
    assert (State.of(model.module), model.passes.forwards) == (before, counted)
    assert torch.equal(torch.get_rng_state(), drawn)
    reached = {f"<{name}>" for name in inputs}
    assert reached <= {source for source, _ in edges}
    while more := {target for source, target in edges if source in reached} - reached:
        reached |= more
    assert "<output>" in reached


def test_random_numbers_do_not_disturb_it() -> None:
    """A model that draws in evaluation too has the same parts in both passes."""
    assert wired(lambda m, x: F.dropout(x, training=True) + torch.rand(4)) == {
        ("<x>", ":dropout#0"), (":dropout#0", ":add#0"), (":rand#0", ":add#0"), (":add#0", "<output>"),
    }  # fmt: skip
