"""Models whose sequences have time on axis 0 and rows on axis 1, asked as if rows were first: what to do is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause
from tests.support.checked_attributions import Build, ask, noise, wired


def last(states: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    """Scores of the last step of ``states``, [time, rows, 8]."""
    return lambda m, x: m.head(states(m, x)[-1])  # type: ignore[operator]


def sequences(states: Callable[..., Tensor], part: Callable[[], nn.Module]) -> Build:
    return wired(last(states), part=part, head=lambda: nn.Linear(8, 3))


TIME_FIRST = {
    "LSTM": sequences(lambda m, x: m.part(x)[0], lambda: nn.LSTM(8, 8)),
    "GRU": sequences(lambda m, x: m.part(x)[0], lambda: nn.GRU(8, 8)),
    "RNN": sequences(lambda m, x: m.part(x)[0], lambda: nn.RNN(8, 8)),
    "MultiheadAttention": sequences(lambda m, x: m.part(x, x, x)[0], lambda: nn.MultiheadAttention(8, 2)),
    "Transformer": sequences(lambda m, x: m.part(x, x), lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0)),
}
REMEDY = "without batch_first, which has rows on axis 1: send rows on axis 0, and let Adapter.forward transpose them"
BOTH = pytest.mark.parametrize("kind", TIME_FIRST)


@BOTH
def test_the_missing_rows_of_an_output_are_told(kind: str) -> None:
    with pytest.raises(ca.InvalidArgument, match=f"axis 0 is not the batch of 7.*; 'part' is an nn.{kind} {REMEDY}"):
        ask(TIME_FIRST[kind](), {"x": noise(7, 5, 8)}, ca.Saliency())


@BOTH
def test_as_many_steps_as_rows_are_told(kind: str) -> None:
    """Then shapes tell nothing: the rows depend on each other, and no batch norm is to blame."""
    check = ask(TIME_FIRST[kind](), {"x": noise(5, 5, 8)}, ca.Saliency()).attributions[0].checks[0]
    assert check.cause is Cause.ROWS_COUPLED
    assert REMEDY in check.reason
    assert "batch norm" not in check.reason
    assert "one row per request" not in check.reason


@BOTH
def test_a_path_of_many_steps_in_one_pass_is_refused_with_the_remedy(kind: str) -> None:
    with pytest.raises(ca.InvalidArgument, match=f"axis 0 of the output is not these rows; 'part' is an .*{REMEDY}"):
        ask(TIME_FIRST[kind](), {"x": noise(5, 5, 8)}, ca.IntegratedGradients())


@pytest.mark.parametrize("asked", [ca.Saliency(), ca.IntegratedGradients()], ids=["gradient", "path"])
@BOTH
def test_behind_the_remedy_all_agrees(kind: str, asked: Attribution) -> None:
    inner = TIME_FIRST[kind]
    model = wired(lambda m, x: m.inner(x.transpose(0, 1)), inner=inner)()
    found = ask(model, {"x": noise(5, 5, 8)}, asked, target=ca.ClassIndex((1,))).attributions[0]
    assert found.checks[0].verdict is ca.Verdict.AGREES, found.checks


def test_a_batch_norm_in_training_mode_is_still_to_blame_beside_an_lstm() -> None:
    """Only the module from which on rows differ is asked for its axes."""
    model = wired(
        lambda m, x: m.head(F.batch_norm(m.lstm(x.transpose(0, 1))[0][-1], None, None, training=True)),
        lstm=lambda: nn.LSTM(4, 8),
        head=lambda: nn.Linear(8, 3),
    )()
    check = ask(model, {"x": noise(5, 5, 4)}, ca.Saliency()).attributions[0].checks[0]
    assert check.cause is Cause.ROWS_COUPLED
    assert "(a batch norm in training mode?)" in check.reason


@pytest.mark.parametrize("part", [nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)], ids=["none", "batch_first"])
def test_without_such_a_module_the_adapter_is_named(part: nn.Module) -> None:
    model = wired(lambda m, x: x.mean(0), part=lambda: part)()
    with pytest.raises(ca.InvalidArgument, match=r"; let Adapter\.forward return a tensor with rows on axis 0$"):
        ask(model, {"x": torch.ones(3, 5, 4)}, ca.Saliency())
