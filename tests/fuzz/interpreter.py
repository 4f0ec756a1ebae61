"""Runs a model as data, step by step: every call of a module and every run of an operator, with its name, its number
and what goes in and out, each tensor by its path.

Nothing is changed in place here, and nobody hooks anything: whoever wants to see or change something passes a function
that is called wherever a tensor enters or leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.fuzz import graphs
from tests.fuzz.graphs import IN_PLACE, OPERATORS, Block, Chain, Graph, Leaf, Operate, Spec, Visit, listed, wrapped

Tensors: TypeAlias = dict[str, Tensor]
"""By path."""


class Spot(NamedTuple):
    """Where tensors enter or leave a call of a module or of an operator, which has an address for a name; ``written``
    is what an operator that works in place has written over."""

    name: str
    call: int
    entering: bool
    written: Tensor | None = None


Passing: TypeAlias = Callable[[Spot, Tensors], Tensors]
"""What goes on in place of the tensors at a spot."""


def unchanged(_: Spot, tensors: Tensors) -> Tensors:
    """Nobody looks."""
    return tensors


class Interpreter:
    """One forward pass: ``passing`` says what goes on wherever tensors enter or leave, ``replaces`` whether that is
    something else. `split` are modules that change in place what is used afterwards under its old name, and got a
    tensor of their own."""

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        passing: Passing = unchanged,
        replaces: Callable[[Spot], bool] = lambda _: False,
    ) -> None:
        self._graph = graph
        self._weights = weights
        self._passing = passing
        self._replaces = replaces
        self.split: set[str] = set()
        self._inner: dict[str, tuple[Tensor | None, Any]] = {}
        self._calls: Counter[str] = Counter()
        self._running: list[tuple[str, Counter[str]]] = []

    def run(self, inputs: Tensors) -> Tensors:
        """The model's outputs, by name."""
        if self._graph.by_keyword:
            returned = self._module("", self._graph.root, dict(inputs))
        else:
            returned = self._module("", self._graph.root, positional(*inputs.values()))
        if isinstance(returned, dict):
            return returned
        return {f"output{path}": tensor for path, tensor in leaving(returned).items()}

    def _module(self, name: str, spec: Spec, given: Tensors) -> Any:
        call = self._began(name)
        given = self._passing(Spot(name, call, True), given)
        self._running.append((name, Counter()))
        returned = self._forward(name, spec, list(given.values()))
        self._inner[name] = next(iter(given.values()), None), returned
        self._running.pop()
        return _like(returned, self._passing(Spot(name, call, False), leaving(returned)))

    def _began(self, name: str) -> int:
        self._calls[name] += 1
        return self._calls[name] - 1

    def _forward(self, name: str, spec: Spec, slots: list[Tensor]) -> Any:
        if isinstance(spec, Leaf):
            return LEAVES[spec.kind](self, Weights(self._weights, name), *slots)
        if isinstance(spec, Chain):
            (value,) = slots
            for number, part in enumerate(spec.parts):
                value = self._module(_inside(name, str(number)), part, {"": value})
            return value
        for number, step in enumerate(spec.steps):
            results = self._step(name, spec, step, slots)
            if isinstance(step, Operate) and step.op in IN_PLACE:
                slots[step.sources[0]] = results[0]
            if isinstance(step, Visit) and dict(spec.children).get(step.child) == Leaf("InplaceReLU"):
                used = _used(spec, step.sources[0], number + 1)
                slots[step.sources[0]] = self._changed(_inside(name, step.child), slots[step.sources[0]], used)
            slots += results
        return wrapped(spec, slots)

    def _changed(self, name: str, tensor: Tensor, used: bool) -> Tensor:
        """What a tensor is after the module ``name`` has changed it in place, if it did not get another."""
        taken, returned = self._inner[name]
        if taken is tensor:
            return returned
        if self._replaces(Spot(name, self._calls[name] - 1, True)):
            return tensor
        self.split |= {name} if used else set()
        return torch.relu(tensor)

    def _step(self, name: str, block: Block, step: Operate | Visit, slots: list[Tensor]) -> list[Tensor]:
        sources = [slots[slot] for slot in step.sources]
        if isinstance(step, Visit):
            own = dict(block.aliases).get(step.child, step.child)
            given = positional(*sources, alone=not step.keywords) | {key: slots[slot] for key, slot in step.keywords}
            return listed(self._module(_inside(name, own), dict(block.children)[own], given))
        if step.op == "detach":  # computes nothing: it has no address
            return [sources[0].detach()]
        if step.child:
            weights = Weights(self._weights, _inside(name, step.child))
            sources += [weights["weight"], weights["bias"]]
        operator, numbers = OPERATORS[step.op], [step.number] if step.op in graphs.NUMBERED else []
        computes = lambda *given: operator.computes(*given, *numbers)  # noqa: E731
        given = dict(zip(operator.paths, sources))
        return listed(self.operator(operator.name, given, computes, writes=step.op in IN_PLACE))

    def operator(self, name: str, given: Tensors, function: Callable[..., Any], writes: bool = False) -> Any:
        """One operator of the innermost forward that runs, on what goes in by path; ``writes``: into the first."""
        module, counts = self._running[-1]
        address = f"{module}:{name}#{counts[name]}"
        counts[name] += 1
        call = self._began(address)
        returned = function(*self._passing(Spot(address, call, True), given).values())
        spot = Spot(address, call, False, next(iter(given.values())) if writes else None)
        return _like(returned, self._passing(spot, leaving(returned)))


def _used(block: Block, slot: int, first: int) -> bool:
    """Whether a forward uses ``slot`` from its step ``first`` on."""
    steps = block.steps[first:]
    keywords = [source for step in steps if isinstance(step, Visit) for _, source in step.keywords]
    return slot in (*block.gives, *keywords, *(source for step in steps for source in step.sources))


@dataclass(frozen=True)
class Weights:
    """The parameters of one module."""

    all: Mapping[str, Tensor]
    module: str

    def __getitem__(self, name: str) -> Tensor:
        return self.all[_inside(self.module, name)]


def _inside(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def positional(*tensors: Tensor, alone: bool = True) -> Tensors:
    """Arguments by path: a single one has none, where no keyword is beside it."""
    return {"": tensors[0]} if alone and len(tensors) == 1 else {f"[{n}]": each for n, each in enumerate(tensors)}


def leaving(returned: Any) -> Tensors:
    """What a module or an operator returned, by path."""
    if isinstance(returned, Tensor):
        return {"": returned}
    if isinstance(returned, dict):
        return {f'["{key}"]': each for key, each in returned.items()}
    return {f"[{n}]": each for n, each in enumerate(returned)}


def _like(returned: Any, tensors: Tensors) -> Any:
    if isinstance(returned, Tensor):
        return tensors[""]
    if isinstance(returned, dict):
        return dict(zip(returned, tensors.values()))
    return tuple(tensors.values())


def _linear(run: Interpreter, weights: Weights, x: Tensor) -> Any:
    return run.operator("linear", {"[0]": x, "[1]": weights["weight"], "[2]": weights["bias"]}, F.linear)


def _layer_norm(run: Interpreter, weights: Weights, x: Tensor) -> Any:
    given = {"[0]": x, "weight": weights["weight"], "bias": weights["bias"]}
    return run.operator("layer_norm", given, lambda x, weight, bias: F.layer_norm(x, x.shape[-1:], weight, bias))


def _embedding(run: Interpreter, weights: Weights, ids: Tensor) -> Any:
    return run.operator("embedding", {"[0]": ids, "[1]": weights["weight"]}, lambda ids, weight: weight[ids])


def _applied(name: str, path: str, function: Callable[[Tensor], Tensor], writes: bool = False) -> Callable[..., Any]:
    return lambda run, _, x: run.operator(name, {path: x}, function, writes)


LEAVES: Mapping[str, Callable[..., Any]] = {
    "Linear": _linear,
    "Biasless": lambda run, weights, x: run.operator("linear", {"[0]": x, "[1]": weights["weight"]}, F.linear),
    "ReLU": _applied("relu", "[0]", torch.relu),  # PyTorch passes inplace by keyword, so the tensor is not alone
    "InplaceReLU": _applied("relu", "[0]", torch.relu, writes=True),
    "Tanh": _applied("tanh", "", torch.tanh),
    "GELU": _applied("gelu", "[0]", F.gelu),
    "LayerNorm": _layer_norm,
    "Softmax": _applied("softmax", "[0]", lambda x: torch.softmax(x, -1)),
    "Identity": lambda run, _, x: x,
    "Dropout": _applied("dropout", "[0]", lambda x: x),
    "Embedding": _embedding,
    "Constant": lambda run, weights: weights["value"],
}
"""What the forward of each of PyTorch's modules runs."""
