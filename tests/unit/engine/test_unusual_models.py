"""Models that do what hooks cannot stand: what comes back is still what a hand-written hook would have seen.

Each case is a model and, where PyTorch's own full backward hook fails on it or is blind, a twin: the same function of
the same weights, written so that hand-written hooks work. Cases that say ``refusable`` may be answered with an error
or a warning instead; wrong numbers are never an answer.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, Point, PointName
from cutaway.contract.results import InspectResult, WarningCode
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.oracles.hooks import Handmade, equal, flat
from tests.support.checked_attributions import Build, Wired, noise
from tests.support.function_module import Through
from tests.support.state_snapshot import State, untouched

POINTS: tuple[PointName, ...] = ("input", "output", "grad_input", "grad_output")
ASKED: tuple[tuple[PointName, ...], ...] = (*((point,) for point in POINTS), POINTS)


def wired(wiring: Callable[..., Any], *, inplace: bool = True, **more: Callable[[], nn.Module]) -> Build:
    """A seeded model of two linear layers, an activation and an identity."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        parts = {name: make() for name, make in more.items()}
        return Wired(
            wiring, a=nn.Linear(4, 4), act=nn.ReLU(inplace=inplace), id=nn.Identity(), b=nn.Linear(4, 3), **parts
        )

    return build


def altered(build: Build, change: Callable[[nn.Module], Any]) -> Build:
    """``build`` and then ``change``."""

    def changed() -> nn.Module:
        model = build()
        change(model)
        return model

    return changed


@dataclasses.dataclass(frozen=True)
class Case:
    """One awkward model.

    Attributes:
        build: makes it.
        modules: where hooks sit.
        inputs: what goes in.
        twin: makes the same function, written so that hand-written hooks work.
        refusable: an error or a warning is an answer too.
        tolerance: relative; PyTorch takes other kernels for attention when hooks or gradients are about.
    """

    build: Build
    modules: tuple[str, ...]
    inputs: Mapping[str, Tensor]
    twin: Build | None = None
    refusable: bool = False
    tolerance: float = 0.0


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Seeded noise, as the input ``x``."""
    return {"x": noise(*shape, dtype=dtype)}


X = rows(3, 4)
SEQUENCE = rows(3, 2, 4)
IMAGE = rows(2, 3, 6, 6)
TOKENS = {"x": torch.tensor([[1, 2, 3], [4, 5, 6]])}


# In-place operations near hooks, each beside its twin without any.


def add_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h += x
    return m.b(h)


def ignore_the_result(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.act(h)
    return m.b(h)


def change_what_came_out(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.id(h).add_(1)
    return m.b(h * 2)


def change_what_went_in(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    y = m.id(h)
    h.mul_(2)
    return m.b(y)


def change_a_view(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    m.flat(h).mul_(2)
    return m.b(h.mean(1))


def change_a_view_twin(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return m.b((m.flat(h) * 2).view_as(h).mean(1))


def write_elements(m: Any, x: Tensor, copied: bool = False) -> Tensor:
    h = m.a(x).clone() if copied else m.a(x)
    h[:, 0] = 0
    return m.b(h)


def change_model_input(m: Any, x: Tensor) -> Tensor:
    x.mul_(2)
    return m.b(m.a(x))


IN_PLACE = {
    "activation in place": Case(
        wired(lambda m, x: m.b(m.act(m.a(x)))), ("a", "act", "b"), X,
        wired(lambda m, x: m.b(m.act(m.a(x))), inplace=False)),
    "functional in place": Case(
        wired(lambda m, x: m.b(torch.relu_(m.a(x)))), ("a", "b"), X, wired(lambda m, x: m.b(torch.relu(m.a(x))))),
    "x += y": Case(wired(add_in_place), ("a", "b"), X, wired(lambda m, x: m.b(m.a(x) + x))),
    "elements written": Case(
        wired(write_elements), ("a", "b"), X, wired(lambda m, x: write_elements(m, x, copied=True))),
    "the model's input changed": Case(
        wired(change_model_input), ("a", "b"), X, wired(lambda m, x: m.b(m.a(x * 2)))),
    "in-place activation, result ignored": Case(
        wired(ignore_the_result), ("a", "act", "b"), X,
        wired(lambda m, x: m.b(m.act(m.a(x))), inplace=False), refusable=True),
    "output changed, input used": Case(
        wired(change_what_came_out), ("a", "id", "b"), X, wired(lambda m, x: m.b((m.id(m.a(x)) + 1) * 2)),
        refusable=True),
    "input changed, output used": Case(
        wired(change_what_went_in), ("a", "id", "b"), X, wired(lambda m, x: m.b(m.id(m.a(x)) * 2)), refusable=True),
    "view changed, base used": Case(
        wired(change_a_view, flat=nn.Flatten), ("a", "flat", "b"), SEQUENCE, wired(change_a_view_twin, flat=nn.Flatten),
        refusable=True),
    "a module changes its own input": Case(
        wired(lambda m, x: m.b(m.twofold(m.a(x))), twofold=lambda: Through(lambda h: h.mul_(2))),
        ("a", "twofold", "b"), X,
        wired(lambda m, x: m.b(m.twofold(m.a(x))), twofold=lambda: Through(lambda h: h * 2))),
}  # fmt: skip


# Calls that are not one call.


def loop(m: Any, x: Tensor) -> Tensor:
    for _ in range(2 + int(x.abs().sum()) % 3):
        x = torch.tanh(m.a(x))
    return m.b(x)


def twice_under_two_names(m: Any, x: Tensor) -> Tensor:
    return m.b(m.alias(torch.tanh(m.a(x))))


def alias(model: nn.Module) -> None:
    model.add_module("alias", model.get_submodule("a"))


def tie(model: Any) -> None:
    model.tied.weight = model.a.weight


def fall_back(m: Any, x: Tensor) -> Tensor:
    try:
        return m.b(m.picky(x))
    except ValueError:
        return m.b(m.a(x))


def refuse(x: Tensor) -> Tensor:
    raise ValueError("not this one")


CALLS = {
    "called twice": Case(wired(lambda m, x: m.b(m.a(torch.relu(m.a(x))))), ("a", "b"), X),
    "called in a loop of unknown length": Case(wired(loop), ("a", "b"), X),
    "one module under two names": Case(
        altered(wired(twice_under_two_names), alias), ("a", "b"), X, wired(lambda m, x: m.b(m.a(torch.tanh(m.a(x)))))),
    "tied weights": Case(
        altered(wired(lambda m, x: m.b(m.tied(m.a(x))), tied=lambda: nn.Linear(4, 4)), tie), ("a", "tied"), X),
    "identity beside its input": Case(
        wired(lambda m, x: (lambda h: m.b(torch.relu(h * 2) + m.id(h)))(m.a(x))), ("a", "id", "b"), X),
    "identity of the model's input": Case(wired(lambda m, x: m.b(m.id(x) + x)), ("id", "b"), X),
    "never called": Case(wired(lambda m, x: m.b(x)), ("a", "b"), X),
    "raises and is caught": Case(
        wired(fall_back, picky=lambda: Through(refuse)), ("a", "b"), X, wired(lambda m, x: m.b(m.a(x)))),
}  # fmt: skip


# What modules take and return.


class Pair(NamedTuple):
    """Two tensors."""

    one: Any
    two: Any


@dataclasses.dataclass
class Record:
    """Two tensors and something else."""

    one: Any
    two: Any
    note: str = "kept"


@dataclasses.dataclass
class Derived:
    """Two tensors, of which one is no argument."""

    one: Any
    two: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.two = self.one * 2


def output_with_extra(h: Tensor) -> Any:
    """A ModelOutput with a key that is no field."""
    from transformers.modeling_outputs import BaseModelOutput

    output = BaseModelOutput(last_hidden_state=h)
    output["extra"] = h * 2
    return output


def model_output(h: Tensor) -> Any:
    """A ModelOutput of the usual kind."""
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=h, hidden_states=(h * 2,))


def packing(pack: Callable[[Tensor], Any], one: Callable[[Any], Tensor], two: Callable[[Any], Tensor]) -> Build:
    """A model with a module ``pack`` that returns two tensors in some wrapping, both used."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        packed = m.pack(m.a(x))
        return m.b(one(packed) + torch.tanh(two(packed)))

    return wired(wiring, pack=lambda: Through(pack))


TUPLE = packing(lambda h: (h * 1, h * 2), lambda p: p[0], lambda p: p[1])


def packed(
    pack: Callable[[Tensor], Any],
    one: Callable[[Any], Tensor],
    two: Callable[[Any], Tensor],
    refusable: bool = False,
) -> Case:
    """A case of ``packing``, beside the same in a tuple."""
    return Case(packing(pack, one, two), ("a", "pack", "b"), X, TUPLE, refusable)


def taking(give: Callable[[Any, Tensor], Tensor], function: Callable[..., Tensor]) -> Build:
    """A model with a module ``take`` that is given two tensors in some wrapping."""
    return wired(lambda m, x: m.b(give(m.take, m.a(x))), take=lambda: Through(function))


POSITIONAL = taking(lambda take, h: take(h, torch.tanh(h)), lambda one, two: one * two)

WRAPPINGS = {
    "tuple": packed(lambda h: (h * 1, h * 2), lambda p: p[0], lambda p: p[1]),
    "list": packed(lambda h: [h * 1, h * 2], lambda p: p[0], lambda p: p[1]),
    "nested": packed(lambda h: (h * 1, {"deep": [h * 2]}), lambda p: p[0], lambda p: p[1]["deep"][0]),
    "dict": packed(lambda h: {"one": h * 1, "two": h * 2}, lambda p: p["one"], lambda p: p["two"]),
    "dict with keys alike": packed(lambda h: {1: h * 1, "1": h * 2}, lambda p: p[1], lambda p: p["1"]),
    "frozen mapping": packed(
        lambda h: MappingProxyType({"one": h * 1, "two": h * 2}), lambda p: p["one"], lambda p: p["two"],
        refusable=True),
    "NamedTuple": packed(lambda h: Pair(h * 1, h * 2), lambda p: p.one, lambda p: p.two),
    "None inside": packed(lambda h: (h * 1, None, h * 2), lambda p: p[0], lambda p: p[2]),
    "dataclass": packed(lambda h: Record(h * 1, h * 2), lambda p: p.one, lambda p: p.two),
    "dataclass with a derived field": packed(
        lambda h: Derived(h * 1), lambda p: p.one, lambda p: p.two, refusable=True),
    "ModelOutput": packed(
        lambda h: model_output(h * 1), lambda p: p.last_hidden_state, lambda p: p.hidden_states[0]),
    "ModelOutput with an extra key": packed(
        lambda h: output_with_extra(h * 1), lambda p: p["last_hidden_state"], lambda p: p["extra"],
        refusable=True),
    "the same tensor twice": Case(
        packing(lambda h: (h, h), lambda p: p[0], lambda p: p[1]), ("a", "pack", "b"), X),
    "tensors by keyword": Case(
        taking(lambda take, h: take(one=h, two=torch.tanh(h)), lambda one, two: one * two),
        ("a", "take", "b"), X, POSITIONAL),
    "a tensor by position and one by keyword": Case(
        taking(lambda take, h: take(h, two=torch.tanh(h)), lambda one, two: one * two),
        ("a", "take", "b"), X, POSITIONAL),
    "a dict goes in": Case(
        taking(lambda take, h: take({"one": h, "two": torch.tanh(h)}), lambda d: d["one"] * d["two"]),
        ("a", "take", "b"), X, POSITIONAL),
    "a list goes in": Case(
        taking(lambda take, h: take([h, torch.tanh(h)]), lambda d: d[0] * d[1]), ("a", "take", "b"), X, POSITIONAL),
    "a slice of a larger tensor goes in": Case(wired(lambda m, x: m.b(m.a(x)[:, 0])), ("a", "b"), SEQUENCE),
    "an expanded tensor comes out": Case(
        wired(lambda m, x: m.b(m.wide(m.a(x)).mean(1)), wide=lambda: Through(lambda h: h[:, None].expand(-1, 5, -1))),
        ("a", "wide", "b"), X),
}  # fmt: skip


# Parts that PyTorch itself builds in odd ways.


class FlatLSTM(nn.Module):
    """An LSTM whose results lie flat, where a full backward hook sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, (hidden, cell) = self.lstm(x)
        return out, hidden, cell


def recurrent(m: Any, x: Tensor) -> Tensor:
    out, rest = m.rnn(x)
    last = rest if isinstance(rest, Tensor) else rest[0] + rest[1]
    return m.b(out.mean(1) + last[0])


def recurrent_twin(m: Any, x: Tensor) -> Tensor:
    out, hidden, cell = m.rnn(x)
    return m.b(out.mean(1) + (hidden + cell)[0])


def encoder(m: Any, x: Tensor) -> Tensor:
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    padding[0, -1] = True
    return m.b(m.enc(x, src_key_padding_mask=padding)[:, 0])


def encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)


def batch_norm() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.running_mean = torch.tensor([0.1, -0.2, 0.3, 0.0])
    return norm


def convolutional(m: Any, x: Tensor) -> Tensor:
    return m.b(m.norm(m.conv(x)).mean((2, 3)))


def pixels(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"conv": lambda: nn.Conv2d(3, 4, 3), "norm": lambda: nn.BatchNorm2d(4)}


def channels_last(model: Any) -> None:
    model.to(memory_format=torch.channels_last)


def half(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.b(torch.relu(m.a(x)))


ATTENTION_PARTS = ("enc.0", "enc.0.self_attn", "enc.0.linear1", "enc.1.norm2", "b")

LIBRARY = {
    "LSTM": Case(
        wired(recurrent, rnn=lambda: nn.LSTM(4, 4, batch_first=True)), ("rnn", "b"), SEQUENCE,
        wired(recurrent_twin, rnn=FlatLSTM), tolerance=1e-5),
    "GRU": Case(wired(recurrent, rnn=lambda: nn.GRU(4, 4, batch_first=True)), ("rnn", "b"), SEQUENCE),
    "multi-head attention": Case(
        wired(lambda m, x: m.b(m.att(x, x, x)[0].mean(1)), att=lambda: nn.MultiheadAttention(4, 2, batch_first=True)),
        ("att", "b"), SEQUENCE, tolerance=1e-5),
    "transformer encoder layers": Case(
        wired(lambda m, x: m.b(m.enc(x).mean(1)), enc=lambda: nn.Sequential(encoder_layer(), encoder_layer())),
        ATTENTION_PARTS, SEQUENCE, tolerance=1e-5),
    "batch norm left in training mode": Case(
        wired(lambda m, x: m.b(m.norm(m.a(x))), norm=batch_norm), ("a", "norm", "b"), X),
    "weight norm": Case(
        altered(wired(lambda m, x: m.b(m.a(x))), lambda m: nn.utils.parametrizations.weight_norm(m.get_submodule("a"))),
        ("a", "a.parametrizations.weight", "b"), X),
    "spectral norm": Case(
        altered(
            wired(lambda m, x: m.b(m.a(x))), lambda m: nn.utils.parametrizations.spectral_norm(m.get_submodule("a"))),
        ("a", "b"), X),
    "checkpointing": Case(
        wired(lambda m, x: m.b(checkpoint(lambda h: torch.relu(m.a(h)), x, use_reentrant=False))), ("a", "b"), X,
        wired(lambda m, x: m.b(torch.relu(m.a(x))))),
    "checkpointing of what needs a gradient": Case(
        wired(lambda m, x: m.b(checkpoint(lambda h: m.a(torch.tanh(m.id(h))), m.a(x), use_reentrant=False))),
        ("a", "id", "b"), X, wired(lambda m, x: m.b(m.a(torch.tanh(m.id(m.a(x))))))),
    "reentrant checkpointing": Case(
        wired(lambda m, x: m.b(checkpoint(lambda h: torch.relu(m.a(h)), x, use_reentrant=True))), ("a", "b"), X,
        wired(lambda m, x: m.b(torch.relu(m.a(x)))), refusable=True),
    "vmap": Case(
        wired(lambda m, x: m.b(torch.func.vmap(m.a)(x))), ("a", "b"), X, wired(lambda m, x: m.b(m.a(x))),
        refusable=True),
    "autocast": Case(wired(half), ("a", "b"), X),
    "dropout that ignores evaluation": Case(
        wired(lambda m, x: m.b(F.dropout(m.a(x), 0.5, training=True))), ("a", "b"), X),
    "channels last": Case(
        altered(wired(convolutional, **pixels()), channels_last),
        ("conv", "norm", "b"), {"x": IMAGE["x"].to(memory_format=torch.channels_last)}),
    "a real number with its sign pending": Case(
        wired(lambda m, x: m.b(m.id(torch.fft.fft(m.a(x)).conj().imag))), ("a", "id", "b"), X),
    "complex numbers": Case(
        wired(lambda m, x: m.b(m.id(torch.fft.fft(m.a(x))).abs())), ("a", "id", "b"), X, refusable=True),
}  # fmt: skip


# Where gradients begin and end, and what goes in and out of the model.


def frozen_backbone(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    return m.b(h)


def frozen_backbone_twin(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.a(x)
    return m.b(h.requires_grad_())


def scaled_words(m: Any, x: Tensor, in_place: bool) -> Tensor:
    h = m.words(x)
    if in_place:
        h *= 2
    else:
        h = h * 2
    return m.b(h.mean(1))


def vocabulary() -> nn.Module:
    return nn.Embedding(9, 4)


def freeze(model: nn.Module) -> None:
    model.requires_grad_(False)


PLAIN = wired(lambda m, x: m.b(torch.relu(m.a(x))))

EDGES = {
    "frozen parameters": Case(altered(PLAIN, freeze), ("a", "b"), X, PLAIN),
    "token ids": Case(wired(lambda m, x: m.b(m.words(x).mean(1)), words=vocabulary), ("words", "b"), TOKENS),
    "token ids, frozen, then in place": Case(
        altered(wired(lambda m, x: scaled_words(m, x, True), words=vocabulary), freeze), ("words", "b"), TOKENS,
        wired(lambda m, x: scaled_words(m, x, False), words=vocabulary)),
    "ids and weights": Case(
        wired(lambda m, x, w: m.b((m.words(x) * w.unsqueeze(-1)).mean(1)), words=vocabulary), ("words", "b"),
        {**TOKENS, "w": torch.tensor([[0.5, 1.0, -1.0], [2.0, 0.1, 0.3]])}),
    "no_grad part": Case(wired(frozen_backbone), ("a", "b"), X, wired(frozen_backbone_twin)),
    "detached part": Case(wired(lambda m, x: m.b(torch.tanh(m.a(x)).detach() + m.id(x))), ("a", "id", "b"), X),
    "one number an example": Case(wired(lambda m, x: m.b(m.a(x)).sum(1)), ("a", "b"), X),
    "one column": Case(wired(lambda m, x: m.b(m.a(x))[:, :1]), ("a", "b"), X),
    "returns its input": Case(wired(lambda m, x: x), ("a",), X),
    "returns what a module passed on": Case(wired(lambda m, x: m.id(x)), ("id",), X),
    "returns a view of its input": Case(wired(lambda m, x: m.id(x)[:, :2]), ("id",), X),
    "one row": Case(PLAIN, ("a", "b"), rows(1, 4)),
    "fifty rows": Case(PLAIN, ("a", "b"), rows(50, 4)),
    "input out of order in memory": Case(PLAIN, ("a", "b"), {"x": rows(4, 3)["x"].t()}),
    "input that requires a gradient": Case(PLAIN, ("a", "b"), {"x": X["x"].clone().requires_grad_()}),
    "float64": Case(altered(PLAIN, nn.Module.double), ("a", "b"), rows(3, 4, dtype=torch.float64)),
    "bfloat16": Case(altered(PLAIN, nn.Module.bfloat16), ("a", "b"), rows(3, 4, dtype=torch.bfloat16)),
    "float16": Case(altered(PLAIN, nn.Module.half), ("a", "b"), rows(3, 4, dtype=torch.float16)),
}  # fmt: skip

CASES = {**IN_PLACE, **CALLS, **WRAPPINGS, **LIBRARY, **EDGES}


def subject(model: nn.Module) -> InspectedModel:
    return InspectedModel(model, lambda inputs: model(**inputs))


def ask(model: nn.Module, inputs: Mapping[str, Tensor], **asked: Any) -> InspectResult:
    """One request, by the engine itself; afterwards all is as before, however it ended."""
    before = State.of(model)
    try:
        return inspect(subject(model), ca.InspectRequest("m", **asked), dict(inputs))
    finally:
        assert before.changes(State.of(model)) == []


def by_hand(case: Case) -> tuple[Handmade, dict[str, Tensor | None]]:
    """What hand-written hooks see, and the gradients at the inputs."""
    model = (case.twin or case.build)().eval()
    leaves = {name: tensor.detach().clone() for name, tensor in case.inputs.items()}
    for tensor in leaves.values():
        tensor.requires_grad_(tensor.is_floating_point())
    modules = set(dict(model.named_modules()))
    torch.manual_seed(2)
    seen = Handmade(
        model,
        [name for name in case.modules if name in modules],
        lambda: model(**{name: tensor.clone() for name, tensor in leaves.items()}),
        lambda output: output if output.ndim == 1 else output.gather(1, output.argmax(1, keepdim=True)),
    )
    return seen, {name: leaf.grad for name, leaf in leaves.items()}


Order = dict[tuple[str, int, str], list[str]]


def order(case: Case) -> Order:
    """The paths of the tensors of each call, in the order in which the module takes and returns them."""
    try:
        values, _ = ask_what_is_there(case, ("input", "output"))
    except ca.CutawayError:
        return {}
    return {
        (name, index, prefix + point.value): list(tensors)
        for name, capture in values.captures.items()
        for index, call in enumerate(capture.calls)
        for point, tensors in call.leaves.items()
        for prefix in ("", "grad_")
    }


ABSENT = {"POINT_NOT_FOUND", "POINT_NOT_DIFFERENTIABLE"}


def ask_what_is_there(case: Case, points: tuple[PointName, ...]) -> tuple[InspectResult, set[tuple[str, str]]]:
    """All of ``points`` of all modules, less those that are refused because they do not exist; and these."""
    wanted = [(name, point) for name in case.modules for point in points]
    refused: set[tuple[str, str]] = set()
    while True:
        captures = tuple(ca.Capture(name, at=point) for name, point in wanted)
        model = case.build()
        torch.manual_seed(2)
        try:
            return ask(model, case.inputs, captures=captures), refused
        except ca.CutawayError as failure:
            if failure.reason not in ABSENT:
                raise
            refused.add(wanted.pop(int(failure.field.removeprefix("captures[").partition("]")[0])))


def compare(
    case: Case,
    result: InspectResult,
    points: tuple[PointName, ...],
    seen: Handmade,
    paths: Order,
    refused: set[tuple[str, str]],
) -> list[str]:
    """Where ``result`` is not what hand-written hooks saw."""
    wrong = [
        f"{points}: {point} of {name} is refused, though it is there"
        for name, point in refused
        if flat(getattr(seen, point).get(name, []))
    ]
    if not equal(next(iter(result.predictions.values())), seen.prediction, case.tolerance):
        wrong.append(f"{points}: the prediction")
    warned = {warning.subject for warning in result.warnings}
    for name, point in itertools.product(case.modules, points):
        expected = getattr(seen, point).get(name, [])
        expected = list(reversed(expected)) if point.startswith("grad") else expected
        calls = result.captures[name].calls if name in result.captures else ()
        if (name, point) in refused:
            continue
        if len(calls) < len(expected) and not (case.refusable and name in warned):
            wrong.append(f"{points}: {point} of {name}: {len(calls)} calls and not {len(expected)}")
        for index, call in enumerate(calls):
            tensors = call.leaves.get(Point(point), {})
            known = paths.get((name, index, point), [])
            ours = [tensors[path] for path in known if path in tensors]
            theirs = flat(expected[index]) if index < len(expected) else []
            if not ours and name not in warned:
                wrong.append(f"{points}: {point} of call {index} of {name} is missing without a word")
            if case.refusable and name in warned and not ours:
                continue
            if not (len(tensors) == len(ours) == len(theirs) and all(map(equal, ours, theirs, [case.tolerance] * 9))):
                wrong.append(
                    f"{points}: {point} of call {index} of {name}: {len(ours)} tensors, not those seen by hand"
                )
    return wrong


@pytest.mark.parametrize("name", list(CASES))
def test_captures_and_prediction_are_what_handwritten_hooks_see(name: str) -> None:
    """Bit for bit, whatever else is or is not captured; and afterwards the model is as it was."""
    case = CASES[name]
    seen, _ = by_hand(case)
    paths = order(case)
    wrong = []
    for points in ASKED:
        try:
            result, refused = ask_what_is_there(case, points)
            wrong += compare(case, result, points, seen, paths, refused)
        except ca.CutawayError as failure:
            wrong += [] if case.refusable else [f"{points}: {failure}"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.inputs["x"].is_floating_point()])
def test_input_gradients_are_autograds(name: str) -> None:
    """The gradient at each floating input is the one that backward() leaves there; where none arrives, a warning."""
    case = CASES[name]
    seen, gradients = by_hand(case)
    model = case.build()
    torch.manual_seed(2)
    try:
        result = ask(model, case.inputs, input_gradients=())
    except ca.CutawayError as failure:
        if case.refusable or (gradients["x"] is None and failure.reason == "NOT_DIFFERENTIABLE"):
            return
        raise
    assert equal(next(iter(result.predictions.values())), seen.prediction, case.tolerance)
    for name, expected in gradients.items():
        if expected is None:
            assert name not in result.input_gradients
            assert [(w.code, w.subject) for w in result.warnings] == [(WarningCode.NO_GRADIENT, name)]
        else:
            assert equal(result.input_gradients[name], expected, case.tolerance)


def test_a_recursive_module_has_its_calls_in_the_order_in_which_they_begin() -> None:
    """A module that calls itself: every call keeps its own input, output and gradients."""

    def recurse(m: Any, x: Tensor) -> Tensor:
        return m.b(m.deep(x, 2))

    class Deep(nn.Module):
        def forward(self, x: Tensor, depth: int) -> Tensor:
            return torch.tanh(self(x * 2, depth - 1)) if depth else x * 3

    case = Case(wired(recurse, deep=Deep), ("deep",), X)
    seen, _ = by_hand(case)
    calls = ask(case.build(), X, captures=(ca.Capture("deep", at=POINTS),)).captures["deep"].calls
    assert len(calls) == 3
    for index, call in enumerate(calls):  # PyTorch's hooks fire as calls end: the innermost first
        assert equal(call.leaves[Point.INPUT]["[0]"], flat(seen.input["deep"][index])[0])
        assert equal(call.output, flat(seen.output["deep"][2 - index])[0])
        assert equal(call.grad_output, flat(seen.grad_output["deep"][index])[0])
        assert equal(call.leaves[Point.GRAD_INPUT]["[0]"], flat(seen.grad_input["deep"][2 - index])[0])


def test_a_recursive_call_that_raises_and_is_caught_leaves_the_outer_calls_record_alone() -> None:
    """The output of the outer call is on the outer call's record, not on that of the inner one, which has none."""

    class Retry(nn.Module):
        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            if not again:
                raise ValueError("the inner call fails")
            try:
                self(x, again=False)
            except ValueError:
                return x * 2
            return x

    calls = (
        ask(wired(lambda m, x: m.b(m.retry(x)), retry=Retry)(), X, captures=(ca.Capture("retry", at=("output",)),))
        .captures["retry"]
        .calls
    )
    assert [list(call.leaves) for call in calls] == [[Point.OUTPUT], []]
    assert equal(calls[0].output, X["x"] * 2)


def test_a_gradient_that_the_model_takes_itself_is_not_the_targets() -> None:
    """A forward that differentiates on its own (forces from an energy): what its inner backward pass shows the hooks
    is not passed off as the target's gradient."""

    def force(m: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            z = x.detach().clone().requires_grad_()
            inner = torch.autograd.grad(m.a(z).pow(2).sum(), z)[0]
        return m.b(x + inner)

    result = ask(wired(force)(), X, captures=(ca.Capture("a", at="grad_output"), ca.Capture("b", at="grad_output")))
    assert not result.captures["a"].calls[0].leaves.get(Point.GRAD_OUTPUT)
    assert WarningCode.NO_GRADIENT in {warning.code for warning in result.warnings}


def test_several_tensors_come_in_the_order_of_the_arguments() -> None:
    """Gradients at several tensors are listed as the module takes them, not as the backward pass came by."""
    attention = wired(
        lambda m, x: m.b(m.att(x, x * 2, x * 3)[0].mean(1)), att=lambda: nn.MultiheadAttention(4, 2, batch_first=True)
    )
    call = ask(attention(), SEQUENCE, captures=(ca.Capture("att", at=POINTS),)).captures["att"].calls[0]
    assert list(call.leaves[Point.INPUT]) == ["[0]", "[1]", "[2]"]
    assert list(call.leaves[Point.GRAD_INPUT]) == ["[0]", "[1]", "[2]"]


def test_an_owners_own_hook_acts_and_stays() -> None:
    """A hook that the owner put on the model takes part in what is captured, and is there afterwards."""
    model: Any = PLAIN()
    handle = model.a.register_forward_hook(lambda module, args, output: output * 2)
    try:
        result = ask(model, X, captures=(ca.Capture("a", at=("output", "grad_output")),))
        assert equal(result.captures["a"].output, model.a(X["x"]))
    finally:
        handle.remove()


@pytest.mark.parametrize("at", ["output", ("input", "output"), ("output", "grad_output")])
def test_an_error_of_an_owners_pre_hook_is_the_models(at: Any) -> None:
    """The module's call never began for our hooks, and those that end it run all the same."""

    def refuse(*_: Any) -> None:
        raise ValueError("the owner takes four columns")

    layer = nn.Linear(3, 3)
    model = InspectedModel(nn.Sequential(layer, nn.ReLU()), lambda inputs: model.module(inputs["x"]))
    with layer.register_forward_pre_hook(refuse), pytest.raises(InvalidArgument, match="four columns") as failure:
        inspect(model, ca.InspectRequest("m", captures=(ca.Capture("0", at=at),)), {"x": torch.ones(1, 3)})
    assert failure.value.reason == "MODEL_FAILED"


def test_a_padding_mask_does_not_change_what_comes_back() -> None:
    """PyTorch's encoder takes another path, with nested tensors, where no gradient is needed: captures of values work
    there too, and one request has one function, whatever is captured."""
    model = altered(
        wired(encoder, enc=lambda: nn.TransformerEncoder(encoder_layer(), 2)), lambda m: nn.Module.eval(m)
    )()
    plain = ask(model, SEQUENCE).predictions["output"]
    layer = "enc.layers.1"
    values = ask(model, SEQUENCE, captures=(ca.Capture(layer, at="output"),))
    gradients = ask(model, SEQUENCE, captures=(ca.Capture(layer, at=("output", "grad_output")),))
    assert np.allclose(values.predictions["output"], plain, atol=1e-6)
    assert np.allclose(gradients.predictions["output"], plain, atol=1e-6)
    assert np.allclose(values.captures[layer].output, gradients.captures[layer].output, atol=1e-6)


# What is left behind.


class Stateful(nn.Module):
    """A linear layer and a buffer, with a forward that is given."""

    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.words = nn.Embedding(9, 4, max_norm=0.5)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(64, 3))
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def count_by_rebinding(m: Any, x: Tensor) -> Tensor:
    m.count = m.count + 1
    return m.fc(x) * m.count


def count_in_place(m: Any, x: Tensor) -> Tensor:
    m.count += 1
    return m.fc(x) * m.count


def force_batch_statistics(m: Any, x: Tensor) -> Tensor:
    m.norm.train()
    return m.fc(m.norm(x)) + m.norm.running_mean.mean()


def behind_autograds_back(m: Any, x: Tensor) -> Tensor:
    m.count.data.add_(1)
    return m.fc(x) * m.count


def into_a_cache(m: Any, x: Tensor) -> Tensor:
    m.cache[: len(x)] += m.fc(x)
    return m.cache[: len(x)]


def renormalise(m: Any, x: Tensor) -> Tensor:
    return m.fc(m.words(x.abs().long()).mean(1))


def with_a_parameter(m: Any, x: Tensor) -> dict[str, Tensor]:
    return {"logits": m.fc(x), "weight": m.fc.weight}


FORGETFUL: dict[str, Callable[[Any, Tensor], Any]] = {
    "a buffer counted by rebinding": count_by_rebinding,
    "a buffer counted in place": count_in_place,
    "a buffer changed behind autograd's back": behind_autograds_back,
    "running statistics": force_batch_statistics,
    "results kept in a cache": into_a_cache,
    "a parameter among the outputs": with_a_parameter,
}

WAYS: dict[str, dict[str, Any]] = {
    "prediction": {},
    "captures": {"captures": (ca.Capture("fc", at=POINTS),), "input_gradients": ()},
    "attributions": {
        "attributions": (ca.Saliency(), ca.IntegratedGradients(n_steps=4), ca.LayerGradientXActivation(layer="fc")),
        "check": CheckRequest(CheckMode.INDEPENDENT),
    },
}


def stateful(forward: Callable[[Any, Tensor], Any]) -> Stateful:
    torch.manual_seed(0)
    return Stateful(forward).eval()


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("name", list(FORGETFUL))
def test_a_request_leaves_no_trace_and_sees_none(name: str, way: str) -> None:
    """A model that changes itself as it runs: it is put back, and the next request gets what the first one got."""
    model = stateful(FORGETFUL[name])
    table = subject(model)
    expected = next(iter(_listed(stateful(FORGETFUL[name])(X["x"].clone())).values())).detach()
    for _ in range(2):
        with untouched(model):
            result = inspect(table, ca.InspectRequest("m", **WAYS[way]), dict(X))
        assert equal(next(iter(result.predictions.values())), expected)


def _listed(outputs: Any) -> Mapping[str, Tensor]:
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


def test_parameters_that_the_model_changes_are_put_back_or_refused() -> None:
    """An embedding with ``max_norm`` writes into its own weights on every call."""
    refusal = ""
    try:
        ask(stateful(renormalise), rows(3, 4), captures=(ca.Capture("fc"),))
    except ca.CutawayError as failure:
        refusal = failure.reason
    assert refusal in {"", "ADAPTER_INVALID", "MODEL_FAILED"}


def in_place(m: Any) -> None:
    with torch.no_grad():
        m.fc.weight.add_(1)


def other_data(m: Any) -> None:
    m.fc.weight.data = m.fc.weight.data + 1


@pytest.mark.parametrize("write", [in_place, other_data])
def test_parameters_that_change_for_some_numbers_are_put_back(write: Callable[[Any], None]) -> None:
    """Though the first pass changed none: it decided so by its numbers, and the next may not."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            write(m)
        logits: Tensor = m.fc(x)
        return logits

    model = stateful(forward)
    table, positive, before = subject(model), X["x"].abs(), model.fc.weight.detach().clone()
    for x in (positive, -positive, positive):
        output = inspect(table, ca.InspectRequest("m"), {"x": x}).predictions["output"]
        expected = model.fc(x) + (x is not positive) * x.sum(1, keepdim=True)
        np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-4)
        assert torch.equal(model.fc.weight, before)


@pytest.mark.parametrize("write", [in_place, other_data])
def test_parameters_that_a_failing_pass_changed_are_put_back(write: Callable[[Any], None]) -> None:
    """Also where their data are others."""

    def forward(m: Any, x: Tensor) -> Tensor:
        write(m)
        raise ValueError("not today")

    model = stateful(forward)
    before = model.fc.weight.detach().clone()
    with pytest.raises(ca.CutawayError, match="not today"):
        inspect(subject(model), ca.InspectRequest("m"), dict(X))
    assert torch.equal(model.fc.weight, before)


@pytest.mark.parametrize("mode", list(CheckMode))
def test_each_explanation_starts_from_the_model_as_it_was(mode: CheckMode) -> None:
    """What one stage of a request does to a buffer does not reach the next stage: the first explanation is about the
    prediction, and it does not matter which explanations come before."""
    asked = {"target": ClassIndex((0,)), "check": CheckRequest(mode)}
    model = stateful(count_in_place)
    alone = ask(model, X, attributions=(ca.Saliency(),), **asked).attributions[0]
    after_another = ask(model, X, attributions=(ca.InputXGradient(), ca.Saliency()), **asked).attributions[1]
    gradient = model.fc.weight[0].abs().expand(3, 4)
    assert equal(alone.values["x"], gradient)
    assert equal(after_another.values["x"], gradient)


def test_predictions_are_the_callers_own() -> None:
    """A reply shares no memory with the model, whatever the model returns."""
    model = stateful(with_a_parameter)
    weight = ask(model, X).predictions["weight"]
    assert not np.shares_memory(weight, model.fc.weight.detach().numpy())


def test_gradients_flags_and_modes_of_the_owner_stay() -> None:
    """Gradients that the owner accumulated, parameters that he froze and modules that he left in training mode."""
    model: Any = wired(lambda m, x: m.b(m.norm(m.a(x))), norm=batch_norm)()
    model(X["x"]).sum().backward()
    model.a.weight.requires_grad_(False)
    model.b.eval()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    ask(model, X, captures=(ca.Capture("**", at=POINTS),))
    ask(model, X, attributions=LAYERS)
    assert all(map(torch.equal, gradients, (parameter.grad for parameter in model.parameters())))


LAYERS = (
    ca.LayerActivation(layer="a"), ca.LayerGradientXActivation(layer="norm"), ca.LayerGradCam(layer="a"),
    ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=3),
)  # fmt: skip


class Stuck(torch.autograd.Function):
    """Doubles; cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ValueError("no way back")


def fail_near_zero(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    if float(x.abs().max()) < 0.5:
        raise RuntimeError("too small")
    return m.b(h)


FAILURES: dict[str, tuple[Build, dict[str, Any], str]] = {
    "forward": (
        wired(lambda m, x: m.b(refuse(m.a(x)))), {"captures": (ca.Capture("**", at=POINTS),)}, "MODEL_FAILED"),
    "forward under Captum": (
        wired(fail_near_zero), {"attributions": (ca.IntegratedGradients(n_steps=9),)}, "MODEL_FAILED"),
    "forward under Captum, at a layer": (
        wired(lambda m, x: m.b(refuse(m.a(x)) if torch.is_grad_enabled() else m.a(x))),
        {"attributions": (ca.LayerGradCam(layer="a"),)}, "MODEL_FAILED"),
    "backward, for a capture": (
        wired(lambda m, x: m.b(Stuck.apply(m.a(x)))), {"captures": (ca.Capture("a", at="grad_output"),)},
        "MODEL_FAILED"),
    "backward of a reentrant checkpoint": (
        wired(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=True))), {"input_gradients": ()}, "MODEL_FAILED"),
    "a layer never called": (
        wired(lambda m, x: m.b(x)), {"attributions": (ca.LayerGradCam(layer="a"),)}, "METHOD_INAPPLICABLE"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "asked", "reason"), FAILURES.values(), ids=FAILURES)
def test_a_failure_has_a_reason_and_leaves_no_trace(build: Build, asked: dict[str, Any], reason: str) -> None:
    """Whatever raises, the caller gets a CutawayError that says so, and the model is as it was."""
    with pytest.raises(ca.CutawayError) as caught:
        ask(build(), X, **asked)
    assert caught.value.reason == reason


# One scalar an example, or none.

ROWLESS: dict[str, tuple[Build, Mapping[str, Tensor]]] = {
    "squeezed to one row's classes": (wired(lambda m, x: m.b(x).squeeze()), rows(1, 4)),
    "a row for every token": (wired(lambda m, x: m.b(x).flatten(0, 1)), SEQUENCE),
    "a number for every token": (wired(lambda m, x: m.b(x).sum(-1).flatten()), SEQUENCE),
    "classes first": (wired(lambda m, x: m.b(x).t()), rows(4, 4)),
    "one number for all": (wired(lambda m, x: m.b(x).mean()), X),
}


@pytest.mark.parametrize("name", list(ROWLESS))
def test_an_output_without_a_row_an_example_is_no_target(name: str) -> None:
    """Where the output's axis 0 is not the batch, there is no scalar an example: the target is refused."""
    build, inputs = ROWLESS[name]
    with pytest.raises(ca.CutawayError) as caught:
        ask(build(), inputs, input_gradients=())
    assert caught.value.reason == "TARGET_SHAPE"


# Models that hooks or gradients cannot reach.


def compiled_in_place() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].compile(backend="eager")
    return model


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "scripted": (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 3))), "MODEL_SCRIPTED"),
    "traced": (lambda: torch.jit.trace(nn.Linear(4, 3), X["x"]), "MODEL_SCRIPTED"),
    "compiled": (lambda: torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="eager"), "MODEL_COMPILED"),
    "compiled in place": (compiled_in_place, "MODEL_COMPILED"),
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3))), "MODEL_QUANTISED"),
    "quantised and fused": (
        lambda: nn.Sequential(torch.ao.nn.intrinsic.quantized.dynamic.LinearReLU(4, 3)), "MODEL_QUANTISED"),
    "spread over devices": (lambda: nn.DataParallel(nn.Sequential(nn.Linear(4, 3))), "ADAPTER_INVALID"),
    "not initialised": (lambda: nn.Sequential(nn.LazyLinear(3)), "ADAPTER_INVALID"),
    "without memory": (lambda: nn.Sequential(nn.Linear(4, 3, device="meta")), "ADAPTER_INVALID"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("build", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_model_out_of_reach_of_hooks_is_refused_when_it_is_mounted(build: Callable[[], Any], reason: str) -> None:
    """A model on which hooks would be silent or gradients missing is refused at once, in words."""
    model = build()
    try:
        with pytest.raises(ca.CutawayError) as caught:
            subject(model)
        assert caught.value.reason == reason
    finally:
        for module in model.modules():
            module._forward_pre_hooks.clear()  # a lazy layer is born with one


@pytest.mark.slow
def test_a_part_compiled_inside_forward_is_not_silent() -> None:
    """A module inside a compiled function may be out of reach; then there is a warning and no capture."""

    def wiring(m: Any, x: Tensor) -> Tensor:
        def quick(h: Tensor) -> Tensor:
            return torch.relu(m.a(h))

        if not hasattr(m, "quick"):
            m.quick = torch.compile(quick, backend="eager")
        return m.b(m.quick(x))

    model = wired(wiring)()
    model(X["x"])
    result = ask(model, X, captures=(ca.Capture("a", at=POINTS),))
    if "a" in result.captures:
        assert equal(result.captures["a"].output, model.get_submodule("a")(X["x"]))
    else:
        assert [(warning.code, warning.subject) for warning in result.warnings] == [
            (WarningCode.MODULE_NOT_CALLED, "a")
        ]


def test_weights_loaded_under_inference_mode_are_served_or_refused() -> None:
    """Tensors born under inference_mode cannot be saved for a backward pass: the owner is told so, at once."""
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    try:
        table = InspectedModel(model, lambda inputs: model(inputs["x"]))
    except ca.CutawayError as failure:
        if failure.reason == "ADAPTER_INVALID":
            return
        raise
    result = inspect(table, ca.InspectRequest("m", captures=(ca.Capture("0", at="grad_output"),)), dict(X))
    assert result.captures["0"].grad_output.shape == (3, 3)


def test_the_owners_cudnn_settings_hold_during_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model runs with the precision and determinism that its owner set: TF32 stays off where it was switched off."""
    seen = []

    def note(m: Any, x: Tensor) -> Tensor:
        cudnn = torch.backends.cudnn
        seen.append((cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32))
        return m.b(m.a(x))

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    ask(wired(note)(), X, input_gradients=(), attributions=(ca.Saliency(),))
    assert set(seen) == {(True, True, False)}


@pytest.mark.slow
def test_ten_thousand_modules_are_no_reason_to_stop() -> None:
    """A deep model is described, hooked everywhere and left clean; the work grows with the number of modules."""
    model = nn.Sequential(*[nn.Linear(2, 2) if index % 50 == 0 else nn.Identity() for index in range(10_000)])
    table = InspectedModel(model, lambda inputs: model(inputs["x"]))
    request = ca.InspectRequest("m", captures=(ca.Capture("**"), ca.Capture("9950", at="grad_output")))
    result = inspect(table, request, rows(2, 2))
    assert len(result.captures) == 10_001
    assert result.captures["9950"].grad_output.shape == (2, 2)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model)


def test_the_model_itself_has_a_name() -> None:
    """A model without modules inside is captured and changed too, by a dot."""
    model, x = nn.Linear(4, 3), {"input": X["x"]}
    captures = tuple(ca.Capture(".", at=point) for point in POINTS)
    result = ask(model, x, target=ClassIndex((1,)), captures=captures)
    seen = result.captures[""].calls[0]
    assert np.array_equal(seen.leaves[Point.INPUT]["input"], x["input"])
    assert np.array_equal(seen.leaves[Point.GRAD_INPUT]["input"], model.weight[1].detach().expand(3, 4))
    changed = ask(model, x, edits=(ca.Zero(module="."),))
    assert not changed.predictions["output"].any()


def test_a_target_without_axes_is_explained() -> None:
    """A number for all examples together has no rows to look into one by one."""
    model = nn.Sequential(nn.Linear(4, 3), Wired(lambda _, x: x.sum()))
    result = ask(model, {"input": X["x"][:1]}, attributions=(ca.Saliency(), ca.IntegratedGradients()))
    assert [each.verdict for each in result.attributions] == [ca.Verdict.AGREES] * 2


@pytest.mark.parametrize(("wild", "index"), [(float("nan"), 1), (float("inf"), 1), (-float("inf"), 2)])
def test_the_predicted_class_is_the_target_where_logits_are_not_finite(wild: float, index: int) -> None:
    """As numpy and PyTorch choose it: the first that is not a number, or the largest."""
    model = Wired(lambda _, x: x + torch.tensor([0.0, wild, 0.0]))
    table = InspectedModel(model, lambda inputs: model(inputs["x"]), labels=("a", "b", "c"))
    result = inspect(table, ca.InspectRequest("m", input_gradients=()), {"x": torch.tensor([[1.0, 2.0, 3.0]])})
    assert result.targets is not None
    assert result.classes[0].index == result.targets[0] == index
