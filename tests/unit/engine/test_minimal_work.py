"""Only the work that was asked for: no graph, no gradient, no module, no hook and no pass beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import cutaway as ca
from tests.support.worker_calls import ask, worker

X = {"x": torch.randn(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))}
POINTS = tuple(ca.Point)
GRADIENTS = (ca.Point.GRAD_INPUT, ca.Point.GRAD_OUTPUT)
NAMES = ("conv", "act", "twice", "last")


class Watched(nn.Module):
    """Four modules around an operator; the third is called twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.ReLU()
        self.twice = nn.Linear(32, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.act(self.conv(x)).flatten(1))
        return self.last(self.twice(F.gelu(self.twice(h))))


class Log:
    """What each module's own forward saw, in a model whose forwards are wrapped, and not hooked.

    Attributes:
        ran: the modules in the order in which they ran.
        graph: whether grad mode was on in each of these.
        modes: how many modes of PyTorch were active.
        hooks: how many hooks sat on each module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ran: list[str] = []
        self.graph: set[bool] = set()
        self.modes: set[int] = set()
        self.hooks: dict[str, int] = {}
        for name in NAMES:
            self._wrap(name, model.get_submodule(name))

    def _wrap(self, name: str, module: nn.Module) -> None:
        own: Callable[..., Tensor] = module.forward

        def forward(*args: Tensor) -> Tensor:
            self.ran.append(name)
            self.graph.add(torch.is_grad_enabled())
            self.modes.add(torch._C._len_torch_function_stack())
            self.hooks[name] = len(module._forward_hooks) + len(module._forward_pre_hooks)
            return own(*args)

        module.forward = forward


def logged(**asked: Any) -> tuple[Log, ca.InspectResult]:
    """What ran for one request, and the answer. What must be known of a model is found out in its first one."""
    model = Watched()
    served = worker(model)
    ask(served, X, **asked)
    log = Log(model)
    return log, ask(served, X, **asked)


# Graphs and gradients.

WITHOUT_GRADIENTS: dict[str, dict[str, Any]] = {
    "predictions": {},
    "values": {"captures": [ca.Capture("*", at=("input", "output"))]},
    "reduced values": {"captures": [ca.Capture("conv", reduce=ca.Mean((2, 3)), slices=(ca.Slice(0, 0, 1),))]},
    "operators": {"captures": [ca.Capture(op="**:*#*")]},
    "edits": {"edits": [ca.Scale("conv", factor=2.0), ca.Zero(op=":gelu#0")], "compare": True},
    "a gradient's edit that nobody looks at": {"edits": [ca.Scale("conv", "grad_output", factor=2.0)]},
    "a target that nobody differentiates": {"target": ca.OutputNorm()},
    "an early stop": {"captures": [ca.Capture("conv", call=0)], "predictions": False},
}


@pytest.mark.parametrize("asked", WITHOUT_GRADIENTS)
def test_no_graph_without_gradients(asked: str) -> None:
    """Where no gradient is asked for, autograd records nothing, in any pass, and there is no backward pass."""
    log, result = logged(**WITHOUT_GRADIENTS[asked])
    assert log.graph == {False}
    assert result.provenance.backwards == 0


class Masks(TorchDispatchMode):
    """Notes which of its gradients each convolution's backward pass computes: input, weight, bias."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.seen.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("asked", "mask"),
    [
        ({"input_gradients": True}, (True, False, False)),
        ({"captures": [ca.Capture("conv", at=GRADIENTS)]}, (True, False, False)),
        ({"captures": [ca.Capture("conv", at="grad_output")]}, None),
        ({"captures": [ca.Capture(parameter="last.weight"), ca.Capture(parameter="twice.bias")]}, None),
        ({"captures": [ca.Capture(parameter="conv.weight")]}, (False, True, False)),
        ({"captures": [ca.Capture(parameter="conv.bias")], "input_gradients": True}, (True, False, True)),
        ({"attributions": [ca.Saliency()]}, (True, False, False)),
        ({"attributions": [ca.LayerGradCam(layer="conv")]}, None),
    ],
    ids=["input", "module", "module's output", "other parameters", "weight", "bias and input", "explained", "layer"],
)
def test_a_convolution_computes_the_gradients_that_are_named(asked: dict[str, Any], mask: Any) -> None:
    """Of input, weight and bias, a backward pass computes what was named, and does not go further than it must."""
    served = worker(Watched())
    ask(served, X, **asked)  # the first finds out what checks must know of the model
    with Masks() as masks:
        ask(served, X, **asked)
    assert set(masks.seen) == ({mask} if mask else set())


@pytest.mark.parametrize("named", [(), ("conv.weight",), ("twice.bias", "last.weight")])
def test_no_parameter_has_a_gradient_unless_named(named: tuple[str, ...]) -> None:
    """Hooks of the owner's own on the parameters hear of those alone that were named, and `grad` stays empty."""
    model = Watched()
    served = worker(model)
    heard: set[str] = set()
    handles = [parameter.register_hook(_hearing(name, heard)) for name, parameter in model.named_parameters()]
    captures = [ca.Capture("*", at=POINTS), *(ca.Capture(parameter=name) for name in named)]
    result = ask(served, X, captures=captures, input_gradients=True)
    for handle in handles:
        handle.remove()
    assert heard == set(named) == set(result.parameter_gradients)
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == []


def _hearing(name: str, heard: set[str]) -> Callable[[Tensor], None]:
    return lambda _: heard.add(name)


# Modules that run.

ALL = ["conv", "act", "twice", "twice", "last"]

STOPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "behind a module": ({"captures": [ca.Capture("conv", call=0)]}, ["conv"]),
    "before a module": ({"captures": [ca.Capture("act", at="input", call=0)]}, ["conv"]),
    "behind an operator": ({"captures": [ca.Capture(op=":tanh#0", call=0)]}, ["conv", "act"]),
    "behind what a glob names": ({"captures": [ca.Capture("con?", call=0)]}, ["conv"]),
    "behind the last of several": (
        {"captures": [ca.Capture("act", call=0), ca.Capture("conv", at=("input", "output"), call=0)]}, ["conv", "act"]),
    "behind the first call": ({"captures": [ca.Capture("twice", call=0)]}, ["conv", "act", "twice"]),
    "behind the second call": ({"captures": [ca.Capture("twice", call=1)]}, ["conv", "act", "twice", "twice"]),
    "behind an edit": (
        {"captures": [ca.Capture("act", call=0)], "edits": [ca.Scale("conv", factor=2.0)]}, ["conv", "act"]),
}  # fmt: skip


@pytest.mark.parametrize("stop", STOPS)
def test_forward_stops_when_nothing_more_is_wanted(stop: str) -> None:
    """Without predictions, forward ends where the last capture was made: what lies behind never runs."""
    asked, ran = STOPS[stop]
    log, result = logged(**asked, predictions=False)
    assert log.ran == ran
    assert result.predictions == {}
    whole, _ = logged(**asked)
    assert whole.ran == ALL


RUNS_ON: dict[str, dict[str, Any]] = {
    "any call": {"captures": "conv"},
    "one of two in any call": {"captures": [ca.Capture("conv"), ca.Capture("act", call=0)]},
    "a glob of operators": {"captures": [ca.Capture(op="conv:*#0", call=0)]},
    "a target": {"captures": [ca.Capture("conv", call=0)], "target": 1},
    "nothing": {},
}


@pytest.mark.parametrize("case", RUNS_ON)
def test_forward_runs_on_while_something_may_be_wanted(case: str) -> None:
    """A capture of every call, a glob of operators and a target are not done before forward has ended."""
    log, _ = logged(**RUNS_ON[case], predictions=False)
    assert log.ran == ALL


# Passes.

PASSES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "predictions": ({}, (1, 0)),
    "values and gradients of everything": (
        {
            "captures": [ca.Capture("**", at=POINTS), ca.Capture(op="**:*#*"), ca.Capture(parameter="**")],
            "input_gradients": True,
        },
        (1, 1),
    ),
    "edits": ({"edits": [ca.Scale("conv", factor=2.0)], "captures": [ca.Capture("conv", at=POINTS)]}, (1, 1)),
    "a comparison": ({"edits": [ca.Scale("conv", factor=2.0)], "compare": True}, (2, 0)),
    "three targets": ({"target": ca.TopK(3), "input_gradients": True}, (1, 3)),
    "three targets of which nothing is asked": ({"target": ca.TopK(3)}, (1, 0)),
    "a neuron": ({"target": ca.Neuron("act", (0, 1, 1)), "input_gradients": True}, (1, 0)),
    "a layer's values explained": ({"attributions": [ca.LayerActivation(layer="conv")]}, (2, 0)),
    "an explanation": ({"attributions": [ca.Saliency()]}, (2, 1)),
    "an explanation, checked apart": ({"attributions": [ca.Saliency()], "check": "independent"}, (3, 2)),
}


@pytest.mark.parametrize("case", PASSES)
def test_no_pass_more_than_must_be(case: str) -> None:
    """One forward and one backward pass serve whatever is captured; the count in provenance is the true one."""
    asked, (forwards, backwards) = PASSES[case]
    log, result = logged(**asked)
    assert (result.provenance.forwards, result.provenance.backwards) == (forwards, backwards)
    assert log.ran.count("conv") == forwards


def test_what_is_true_of_a_model_is_found_out_once() -> None:
    """The first checked explanation runs the model a few times more, to see whether it repeats itself, keeps its rows
    apart and differentiates honestly; the next does not, and neither counts these passes as the request's own."""
    model = Watched()
    served = worker(model)
    log = Log(model)
    counts, answers = [], []
    for _ in range(2):
        before = log.ran.count("conv")
        answers.append(ask(served, X, attributions=[ca.Saliency()]).provenance.forwards)
        counts.append(log.ran.count("conv") - before)
    assert answers == [2, 2]
    assert counts[1] == 2
    # Four rows are exchanged in four passes, two find the axis of the rows, and three are for central differences.
    assert 2 < counts[0] <= 21


# Hooks and modes.


def test_hooks_sit_where_they_are_wanted_and_nowhere_else() -> None:
    """A capture, an edit and a neuron each put hooks on their own module; the others have none."""
    log, _ = logged(captures=[ca.Capture("conv", at=POINTS)], edits=[ca.Zero("last", rows=(0,))])
    assert {name for name, count in log.hooks.items() if count} == {"conv", "last"}
    log, _ = logged(target=ca.Neuron("act", (0, 1, 1)), input_gradients=True)
    assert {name for name, count in log.hooks.items() if count} == {"act"}
    log, _ = logged(input_gradients=True, captures=[ca.Capture(parameter="conv.weight")])
    assert set(log.hooks.values()) == {0}


OPERATORS: tuple[dict[str, Any], ...] = (
    {"captures": [ca.Capture(op=":gelu#0")]},
    {"captures": [ca.Capture(op="*:conv*#0", at="grad_output")]},
    {"edits": [ca.Scale(op=":gelu#0", factor=2.0)]},
)


@pytest.mark.parametrize("asked", OPERATORS)
def test_operators_are_followed_where_asked_for(asked: dict[str, Any]) -> None:
    """PyTorch shows operators to a mode, which costs each of them time: it is there for those who ask for one."""
    log, _ = logged(**asked)
    assert log.modes == {1}


def test_operators_are_not_followed_otherwise() -> None:
    """Whatever is asked of modules, no mode of PyTorch is active."""
    log, _ = logged(
        captures=[ca.Capture("**", at=POINTS), ca.Capture(parameter="**")],
        edits=[ca.Scale("conv", factor=2.0)],
        compare=True,
        input_gradients=True,
        attributions=[ca.Saliency(), ca.LayerGradCam(layer="conv")],
    )
    assert log.modes == {0}


@contextmanager
def counting_copies() -> Iterator[list[int]]:
    """How many numbers each copy out of a pass has."""
    from cutaway.engine.hooks import recording

    own, sizes = recording.copy_to_host, list[int]()

    def on_host(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return own(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "copy_to_host", on_host)
        yield sizes


def test_nothing_is_copied_out_that_is_not_wanted() -> None:
    """Slices, reductions, paths and calls are taken where the hook sits: the rest is never copied out of the model."""
    captures = [
        ca.Capture("conv", slices=(ca.Slice(1, 0, 1), ca.Slice(2, 0, 2))),
        ca.Capture("act", reduce=ca.Mean((1, 2, 3))),
        ca.Capture("twice", call=1, reduce=ca.TopElements(2)),
        ca.Capture(op=":gelu#0", data_type="float16", slices=(ca.Slice(0, 0, 1),)),
    ]
    served = worker(Watched())
    ask(served, X, captures=captures)  # the first finds out where rows are
    with counting_copies() as sizes:
        ask(served, X, captures=captures)
    assert sorted(sizes) == sorted([3 * 1 * 2 * 4, 3, 3 * 2, 3 * 2, 32])
