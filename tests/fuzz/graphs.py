"""Small models as data, and the modules that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Leaf:
    """A module without modules inside: one of PyTorch's, or ``Constant``."""

    kind: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chain:
    """An ``nn.Sequential``."""

    parts: tuple[Spec, ...]


@dataclass(frozen=True)
class Operate:
    """One operator of `OPERATORS` inside forward, on slots; ``child`` is whose weights it borrows, if any.

    ``unbound``: it writes in place, and forward goes on with the name that it wrote to, not with what it returns.
    """

    op: str
    sources: tuple[int, ...]
    number: float = 0.0
    child: str = ""
    unbound: bool = False


@dataclass(frozen=True)
class Visit:
    """One call of a child; ``keywords`` are the slots passed by name."""

    child: str
    sources: tuple[int, ...] = ()
    keywords: tuple[tuple[str, int], ...] = ()


Step: TypeAlias = "Operate | Visit"


@dataclass(frozen=True)
class Block:
    """A module with a forward of its own: the arguments fill the first slots, each step adds those that it returns.

    It returns the slots ``gives``: bare, as a tuple, or as a dict under the keys ``k0``, ``k1``, ...; ``aliases`` are
    further names of children.
    """

    children: tuple[tuple[str, Spec], ...]
    takes: tuple[str, ...]
    steps: tuple[Step, ...]
    gives: tuple[int, ...]
    wrap: str = "bare"
    aliases: tuple[tuple[str, str], ...] = ()


Spec: TypeAlias = "Leaf | Chain | Block"


@dataclass(frozen=True)
class Graph:
    """A model, and what goes in: shapes of inputs by name, the batch included, of which ``ids`` is of integers."""

    root: Block
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    seed: int
    by_keyword: bool = False
    frozen: bool = False
    training: bool = False

    @property
    def batch(self) -> int:
        """How many rows."""
        return self.shapes[0][1][0]

    def inputs(self) -> dict[str, Tensor]:
        """Seeded noise, and seeded token ids."""
        dice = torch.Generator().manual_seed(self.seed)
        return {
            name: torch.randint(VOCABULARY, shape, generator=dice)
            if name == "ids"
            else torch.randn(*shape, generator=dice, dtype=torch.float64)
            for name, shape in self.shapes
        }


VOCABULARY = 5


class Constant(nn.Module):
    """Takes nothing and returns a parameter."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(size))

    def forward(self) -> Tensor:
        return self.value


LEAVES: Mapping[str, Callable[..., nn.Module]] = {
    "Linear": nn.Linear,
    "Biasless": lambda taken, given: nn.Linear(taken, given, bias=False),
    "ReLU": nn.ReLU,
    "InplaceReLU": lambda: nn.ReLU(inplace=True),
    "Tanh": nn.Tanh,
    "GELU": nn.GELU,
    "LayerNorm": nn.LayerNorm,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Identity": nn.Identity,
    "Dropout": nn.Dropout,
    "Embedding": lambda width: nn.Embedding(VOCABULARY, width),
    "Constant": Constant,
}


def _assigned(target: Tensor, value: Tensor | float) -> Tensor:
    target[..., :1] = value
    return target


def _increased(target: Tensor, other: Tensor) -> Tensor:
    target += other
    return target


class Operator(NamedTuple):
    """An operator: its name in PyTorch, the paths of what goes in, what it computes, and how a model's author writes it
    where that is another function, because it works in place."""

    name: str
    paths: tuple[str, ...]
    computes: Callable[..., Any]
    written: Callable[..., Any] | None = None


ALONE, ONE, TWO, THREE = ("",), ("[0]",), ("[0]", "[1]"), ("[0]", "[1]", "[2]")


def _first(target: Tensor, value: Tensor | float) -> Tensor:
    first = value if isinstance(value, Tensor) else torch.full_like(target[..., :1], value)
    return torch.cat([first, target[..., 1:]], dim=-1)


OPERATORS: Mapping[str, Operator] = {
    "add": Operator("add", TWO, lambda a, b: a + b),
    "add_number": Operator("add", ONE, lambda a, number: a + number),
    "mul": Operator("mul", TWO, lambda a, b: a * b),
    "mul_number": Operator("mul", ONE, lambda a, number: a * number, lambda a, number: number * a),
    "rsub": Operator("rsub", ONE, lambda a, number: number - a),
    "matmul": Operator("matmul", TWO, lambda a, b: a @ b),
    "mT": Operator("mT", ALONE, lambda a: a.transpose(-1, -2), lambda a: a.mT),
    "relu": Operator("relu", ALONE, torch.relu),
    "relu_functional": Operator("relu", ONE, torch.relu, F.relu),
    "tanh": Operator("tanh", ALONE, torch.tanh, lambda a: a.tanh()),
    "softmax": Operator("softmax", ONE, lambda a: torch.softmax(a, -1), lambda a: F.softmax(a, dim=-1)),
    "layer_norm": Operator("layer_norm", ONE, lambda a: F.layer_norm(a, a.shape[-1:])),
    "cat": Operator("cat", ("[0][0]", "[0][1]"), lambda a, b: torch.cat([a, b], dim=-1)),
    "narrow": Operator("getitem", ONE, lambda a: a[..., :1]),
    "chunk": Operator("chunk", ONE, lambda a: torch.chunk(a, 2, dim=-1)),
    "mean": Operator("mean", ONE, lambda a: a.mean(dim=1)),
    "flatten": Operator("flatten", ONE, lambda a: a.reshape(len(a), -1), lambda a: a.flatten(1)),
    "gt": Operator("gt", ONE, lambda a, number: a > number),
    "where": Operator("where", THREE, torch.where),
    "detach": Operator("detach", ONE, lambda a: a.detach()),
    "borrowed": Operator("linear", THREE, F.linear),
    "add_": Operator("add_", TWO, lambda a, b: a + b, _increased),
    "mul_": Operator("mul_", ONE, lambda a, number: a * number, lambda a, number: a.mul_(number)),
    "relu_": Operator("relu_", ALONE, torch.relu, torch.relu_),
    "relu_flag": Operator("relu", ONE, torch.relu, lambda a: F.relu(a, inplace=True)),
    "setitem": Operator("setitem", ("[0]", "[2]"), _first, _assigned),
    "setitem_number": Operator("setitem", ONE, _first, _assigned),
}

NUMBERED = ("add_number", "mul_number", "rsub", "gt", "mul_", "setitem_number")
IN_PLACE = ("add_", "mul_", "relu_", "relu_flag", "setitem", "setitem_number")


class Programmed(nn.Module):
    """A `Block` as a module."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        for name, spec in block.children:
            self.add_module(name, module(spec))
        for alias, name in block.aliases:
            self.add_module(alias, self.get_submodule(name))

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        slots = [*args, *(kwargs[name] for name in self.block.takes[len(args) :])]
        for step in self.block.steps:
            slots += self._visited(step, slots) if isinstance(step, Visit) else self._operated(step, slots)
        return wrapped(self.block, slots)

    def _visited(self, step: Visit, slots: Sequence[Tensor]) -> list[Tensor]:
        keywords = {name: slots[slot] for name, slot in step.keywords}
        return listed(self.get_submodule(step.child)(*(slots[slot] for slot in step.sources), **keywords))

    def _operated(self, step: Operate, slots: Sequence[Tensor]) -> list[Tensor]:
        given: list[Any] = [slots[slot] for slot in step.sources]
        given += [step.number] if step.op in NUMBERED else []
        given += self.get_submodule(step.child).parameters() if step.child else []
        operator = OPERATORS[step.op]
        returned = (operator.written or operator.computes)(*given)
        return [given[0]] if step.unbound else listed(returned)


def wrapped(block: Block, slots: Sequence[Tensor]) -> Any:
    """What the block returns."""
    given = [slots[slot] for slot in block.gives]
    if block.wrap == "bare":
        return given[0]
    return tuple(given) if block.wrap == "tuple" else {f"k{index}": each for index, each in enumerate(given)}


def listed(returned: Any) -> list[Tensor]:
    """The tensors in what a module or operator returned."""
    if isinstance(returned, Tensor):
        return [returned]
    return list(returned.values() if isinstance(returned, dict) else returned)


def module(spec: Spec) -> nn.Module:
    """The module that ``spec`` describes."""
    if isinstance(spec, Leaf):
        return LEAVES[spec.kind](*spec.sizes)
    if isinstance(spec, Chain):
        return nn.Sequential(*map(module, spec.parts))
    return Programmed(spec)


def build(graph: Graph) -> nn.Module:
    """The model, of 64-bit numbers, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(graph.seed)
        model = module(graph.root).double()
        for parameter in model.parameters():  # ones and zeros, as a LayerNorm begins with, would hide mistakes
            nn.init.normal_(parameter, std=0.7)
    return model.train(graph.training).requires_grad_(not graph.frozen)


def called(model: nn.Module, graph: Graph, inputs: Mapping[str, Tensor]) -> Any:
    """What ``model`` makes of ``inputs``."""
    return model(**inputs) if graph.by_keyword else model(*inputs.values())
