"""Random models.

In-place operations are drawn where their result is a function of the graph: on a tensor that nobody else holds, and
whose numbers no backward pass needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hypothesis import strategies as st

from tests.fuzz.graphs import NUMBERED, Block, Chain, Graph, Leaf, Operate, Spec, Step, Visit

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Shape: TypeAlias = tuple[int, ...]

NUMBERS = (-1.5, 0.5, 2.0, 1.0)


@dataclass
class Slot:
    """One value in a forward; its shape is without the batch, its kind ``float``, ``bool``, ``int`` or ``rowless``.

    Attributes:
        fresh: nobody else holds its memory, and what made it does not need it for a backward pass.
        free: nobody has used it yet.
        gone: it was changed in place, and only the result is used from then on.
    """

    shape: Shape
    kind: str = "float"
    fresh: bool = False
    free: bool = True
    gone: bool = False


@dataclass
class Child:
    """A module that a forward can call: what it takes, and what comes back."""

    spec: Spec
    takes: tuple[Shape, ...]
    returns: tuple[Slot, ...]
    keyword: str = ""


@dataclass
class Draft:
    """A forward being written."""

    draw: Draw
    slots: list[Slot]
    depth: int
    steps: list[Step] = field(default_factory=list)
    children: dict[str, Child] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return options[0] if len(options) == 1 else self.draw(st.sampled_from(options))

    def floats(self, fits: Callable[[Slot], bool] = lambda slot: True) -> list[int]:
        """The slots with floating numbers that ``fits``."""
        return [n for n, slot in enumerate(self.slots) if slot.kind == "float" and not slot.gone and fits(slot)]

    def source(self) -> int:
        """Some slot, rather a late one."""
        there = self.floats()
        return int(self.pick([*there, *there[-2:]]))

    def like(self, slot: int) -> int:
        """Some slot of the same shape."""
        return int(self.pick(self.floats(lambda other: other.shape == self.slots[slot].shape)))

    def writable(self) -> list[int]:
        """Slots that may be changed in place."""
        return self.floats(lambda slot: slot.fresh and slot.free)

    def add(self, step: Step, *results: Slot) -> list[int]:
        """Append ``step``, whose results fill new slots."""
        keywords = [slot for _, slot in step.keywords] if isinstance(step, Visit) else []
        for slot in [*step.sources, *keywords]:
            self.slots[slot].free = False
        self.steps.append(step)
        self.slots += [replace(each) for each in results]
        return list(range(len(self.slots) - len(results), len(self.slots)))

    def operate(self, op: str, sources: Sequence[int], result: Slot, **more: Any) -> int:
        """Append an operator."""
        number = self.pick(NUMBERS) if op in NUMBERED else 0.0
        return self.add(Operate(op, tuple(sources), number, **more), result)[0]

    def enlist(self, child: Child, name: str) -> str:
        """A new child, under a name of its own."""
        own = f"{name}{len(self.children)}"
        self.children[own] = child
        return own

    def call(self, name: str) -> None:
        """Call the child ``name``, or an alias of it, on slots that fit."""
        child = self.children[self.aliases.get(name, name)]
        fitting = [self.floats(lambda slot, shape=shape: slot.shape == shape) for shape in child.takes]  # type: ignore[misc]
        if not all(fitting):
            return
        sources = [self.pick(each) for each in fitting]
        keywords = ((child.keyword, sources.pop()),) if child.keyword else ()
        self.add(Visit(name, tuple(sources), keywords), *child.returns)


WIDEST = 6


def leaf_module(draft: Draft) -> None:
    """A module of PyTorch's on some slot."""
    slot = draft.source()
    shape = draft.slots[slot].shape
    kinds = ["Linear", "Linear", "Biasless", "ReLU", "Tanh", "GELU", "LayerNorm", "Softmax", "Identity", "Dropout"]
    kind = draft.pick(kinds if shape[-1] > 1 else kinds[:6])
    sizes: Shape = (shape[-1],) if kind == "LayerNorm" else ()
    if kind in ("Linear", "Biasless"):
        sizes = (shape[-1], draft.draw(st.integers(2, 4)))
    returned = Slot((*shape[:-1], sizes[1]) if len(sizes) == 2 else shape, fresh=kind in FRESH)
    name = draft.enlist(Child(Leaf(kind, sizes), (shape,), (returned,)), kind[:2].lower())
    draft.add(Visit(name, (slot,)), returned)


FRESH = ("Linear", "Biasless", "GELU", "LayerNorm", "Embedding")


def operator(draft: Draft) -> None:
    """An operator on some slots."""
    a = draft.source()
    shape = draft.slots[a].shape
    ops = ["add", "mul", "relu", "relu_functional", "tanh", "softmax", "rsub", "mul_number", "add_number", "where"]
    ops += ["detach"]
    ops += ["cat"] if shape[-1] <= WIDEST // 2 else []
    ops += ["layer_norm", "chunk", "narrow", "borrowed"] if shape[-1] > 1 else []
    ops += ["matmul", "matmul", "mean", "flatten"] if len(shape) == 2 else []
    op = draft.pick(ops)
    if op in PLAIN:
        draft.operate(op, (a,), Slot(shape, fresh=op in ("rsub", "mul_number", "add_number", "layer_norm")))
    elif op in ("add", "mul"):
        draft.operate(op, draft.pick([(a, draft.like(a)), (draft.like(a), a)]), Slot(shape, fresh=True))
    else:
        SPECIAL[op](draft, a, shape)


PLAIN = (
    *("relu", "relu_functional", "tanh", "softmax", "rsub", "mul_number", "add_number", "layer_norm", "detach"),
)  # fmt: skip


def _cat(draft: Draft, a: int, shape: Shape) -> None:
    fits = draft.floats(lambda slot: slot.shape[:-1] == shape[:-1] and slot.shape[-1] + shape[-1] <= WIDEST)
    other = draft.pick(fits)
    draft.operate("cat", (a, other), Slot((*shape[:-1], shape[-1] + draft.slots[other].shape[-1]), fresh=True))


def _chunk(draft: Draft, a: int, shape: Shape) -> None:
    first = (shape[-1] + 1) // 2
    draft.add(Operate("chunk", (a,)), *(Slot((*shape[:-1], width)) for width in (first, shape[-1] - first)))


def _narrow(draft: Draft, a: int, shape: Shape) -> int:
    return draft.operate("narrow", (a,), Slot((*shape[:-1], 1)))


def _borrowed(draft: Draft, a: int, shape: Shape) -> None:
    """The weights of a linear layer, used without calling it."""
    spec, returned = Leaf("Linear", (shape[-1], 3)), Slot((*shape[:-1], 3), fresh=True)
    layers = [name for name, child in draft.children.items() if child.spec == spec]
    new = Child(spec, (shape,), (returned,))
    draft.operate("borrowed", (a,), returned, child=draft.pick(layers) if layers else draft.enlist(new, "lent"))


def _matmul(draft: Draft, a: int, shape: Shape) -> None:
    """Of two [time, width]: a square of times."""
    turned = draft.operate("mT", (draft.like(a),), Slot(shape[::-1]))
    draft.operate("matmul", (a, turned), Slot((shape[0], shape[0]), fresh=True))


def _where(draft: Draft, a: int, shape: Shape) -> None:
    mask = draft.operate("gt", (a,), Slot(shape, "bool"))
    draft.operate("where", (mask, draft.like(a), draft.like(a)), Slot(shape, fresh=True))


def _mean(draft: Draft, a: int, shape: Shape) -> None:
    draft.operate("mean", (a,), Slot(shape[1:], fresh=True))


def _flatten(draft: Draft, a: int, shape: Shape) -> None:
    if shape[0] * shape[1] <= WIDEST:
        draft.operate("flatten", (a,), Slot((shape[0] * shape[1],)))


SPECIAL: dict[str, Callable[[Draft, int, Shape], Any]] = {
    "cat": _cat, "chunk": _chunk, "narrow": _narrow, "borrowed": _borrowed, "matmul": _matmul, "where": _where,
    "mean": _mean, "flatten": _flatten,
}  # fmt: skip


def in_place(draft: Draft) -> None:
    """Something that writes into what it takes."""
    there = draft.writable()
    if not there:
        leaf_module(draft)
        return
    a = draft.pick(there)
    shape = draft.slots[a].shape
    op = draft.pick(["relu_", "relu_flag", "mul_", "setitem_number", "add_", "setitem", "InplaceReLU", "InplaceReLU"])
    others = draft.floats(lambda slot: slot.shape == shape and slot is not draft.slots[a])
    if op == "InplaceReLU":
        name = draft.enlist(Child(Leaf("InplaceReLU"), (), ()), "act")  # never again: it would need another fresh slot
        (result,) = draft.add(Visit(name, (a,)), Slot(shape))
    elif op in ("add_", "setitem"):
        if not others:
            return
        other = draft.pick(others)
        other = _narrow(draft, other, shape) if op == "setitem" else other
        result = draft.operate(op, (a, other), Slot(shape, fresh=True), unbound=draft.draw(st.booleans()))
    else:
        result = draft.operate(op, (a,), Slot(shape, fresh="relu" not in op), unbound=draft.draw(st.booleans()))
    if draft.draw(st.booleans()):
        draft.slots[a].gone = True
    else:  # two names for one tensor
        draft.slots[result].fresh = draft.slots[a].fresh = False


def again(draft: Draft) -> None:
    """A module called once more, perhaps under another name."""
    names = [name for name, child in draft.children.items() if child.takes]
    if not names:
        leaf_module(draft)
        return
    name = draft.pick(names)
    if draft.draw(st.booleans()) and f"{name}_too" not in draft.aliases:
        draft.aliases[f"{name}_too"] = name
        name = f"{name}_too"
    draft.call(name)


def constant(draft: Draft) -> None:
    """A module that takes nothing, added to some slot."""
    a = draft.source()
    shape = draft.slots[a].shape
    name = draft.enlist(Child(Leaf("Constant", shape[-1:]), (), ()), "bias")
    (value,) = draft.add(Visit(name), Slot(shape[-1:], "rowless"))
    draft.operate("add", draft.pick([(a, value), (value, a)]), Slot(shape, fresh=True))


def chain(draft: Draft) -> None:
    """An ``nn.Sequential``, perhaps with another inside."""
    slot = draft.source()
    spec, returned = _chained(draft, draft.slots[slot].shape, deeper=True)
    shape = draft.slots[slot].shape
    name = draft.enlist(Child(spec, (shape,), (returned,)), "seq")
    draft.add(Visit(name, (slot,)), returned)


def _chained(draft: Draft, shape: Shape, deeper: bool) -> tuple[Chain, Slot]:
    width = draft.draw(st.integers(2, 4))
    parts: list[Spec] = [Leaf("Linear", (shape[-1], width))]
    shape, fresh = (*shape[:-1], width), True
    for _ in range(draft.draw(st.integers(1, 2))):
        kind = draft.pick(["Tanh", "LayerNorm", "GELU", "Identity", *["InplaceReLU"] * (2 * fresh), *["in"] * deeper])
        if kind == "in":
            inner, returned = _chained(draft, shape, deeper=False)
            shape, fresh = returned.shape, returned.fresh
            parts.append(inner)
        else:
            parts.append(Leaf(kind, (shape[-1],) if kind == "LayerNorm" else ()))
            fresh = kind in FRESH
    return Chain(tuple(parts)), Slot(shape, fresh=fresh)


def block(draft: Draft) -> None:
    """A module with a forward of its own, of one or two arguments, the second perhaps by keyword."""
    if draft.depth == 0:
        leaf_module(draft)
        return
    shapes = [draft.slots[draft.source()].shape for _ in range(draft.draw(st.integers(1, 2)))]
    inner = Draft(draft.draw, [Slot(shape) for shape in shapes], draft.depth - 1)
    for _ in range(draft.draw(st.integers(1, 3))):
        inner.pick(KINDS)(inner)
    spec, returned = finished(
        inner, tuple("xyz"[: len(shapes)]), draft.draw(st.sampled_from(["bare", "tuple", "dict"]))
    )
    keyword = "y" if len(shapes) == 2 and draft.draw(st.booleans()) else ""
    draft.call(draft.enlist(Child(spec, tuple(shapes), returned, keyword), "block"))


KINDS = (
    *[leaf_module] * 5, *[operator] * 6, *[in_place] * 3, *[again] * 2, constant, chain, *[block] * 2,
)  # fmt: skip


def finished(draft: Draft, takes: tuple[str, ...], wrap: str) -> tuple[Block, tuple[Slot, ...]]:
    """The draft as a block that returns its last slot, and perhaps others; and what they are."""
    there = draft.floats()
    more = draft.draw(st.lists(st.sampled_from(there), max_size=2)) if wrap != "bare" else []
    gives = (there[-1], *more)
    alone = {slot for slot in gives if gives.count(slot) == 1}
    returned = tuple(
        Slot(slot.shape, fresh=slot.fresh and slot.free and n in alone)
        for n, slot in ((n, draft.slots[n]) for n in gives)
    )
    children = tuple((name, child.spec) for name, child in draft.children.items())
    return Block(children, takes, tuple(draft.steps), gives, wrap, tuple(draft.aliases.items())), returned


@st.composite
def graphs(draw: Draw) -> Graph:
    """A model of three to eight nodes."""
    batch = draw(st.integers(1, 4))
    time = draw(st.sampled_from([(), (), (), (1,), (2,), (3,)]))
    which = draw(st.sampled_from([("x",), ("x",), ("x", "z"), ("x", "ids"), ("ids",)]))
    draft = Draft(draw, [], depth=2)
    shapes = []
    for name in which:
        shape = time if name == "ids" else (*time, draw(st.integers(2, 4)))
        shapes.append((name, (batch, *shape)))
        draft.slots.append(Slot(shape, "int" if name == "ids" else "float", fresh=True))
    if "ids" in which:
        width = draw(st.integers(2, 4))
        embed = draft.enlist(Child(Leaf("Embedding", (width,)), (), ()), "words")
        draft.add(Visit(embed, (which.index("ids"),)), Slot((*time, width), fresh=True))
    for _ in range(draw(st.integers(3, 8))):
        draft.pick(KINDS)(draft)
    if not any(isinstance(step, Visit) or step.op != "detach" for step in draft.steps):
        leaf_module(draft)  # else there would be no place to ask about
    if len(draft.slots[draft.floats()[-1]].shape) == 2 and draw(st.booleans()):
        last = draft.floats()[-1]
        _mean(draft, last, draft.slots[last].shape)
    root, _ = finished(draft, which, draw(st.sampled_from(["bare", "bare", "tuple", "dict"])))
    return Graph(
        root,
        tuple(shapes),
        seed=draw(st.integers(0, 2**32)),
        by_keyword=draw(st.booleans()),
        frozen=draw(st.sampled_from([False] * 7 + [True])),
        training=draw(st.booleans()),
    )
