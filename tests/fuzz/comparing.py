"""The engine's answer beside the one that is expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import assume
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.fuzz.asking import Question
from tests.fuzz.graphs import build, called
from tests.fuzz.ledger import Effect
from tests.fuzz.reference import Expected, answer
from tests.support.device import DEVICE, on_device
from tests.support.mixed.answers import flat
from tests.support.state_snapshot import State

TOLERANCE = 1e-9

tally: Counter[str] = Counter()
"""How much was compared so far."""


def check(question: Question) -> None:
    """Ask the engine, ask the reference, compare; and look at the model afterwards."""
    model = build(question.graph)
    _leave_gradients(model)
    inputs = question.graph.inputs()
    expected = answer(question.graph, _weights(model), inputs, question.request)
    model.to(DEVICE)
    before = State.of(model)
    subject = InspectedModel(model, lambda given: called(model, question.graph, given))
    tally["examples"] += 1
    result = _asked(subject, question, on_device(inputs))
    if isinstance(result, ca.CutawayError):
        tally[f"refused: {result.reason}"] += 1
        assert result.reason in expected.refusals | expected.perhaps, (
            f"{result}; expected {expected.refusals or 'an answer'}"
        )
    else:
        assert not expected.refusals, f"an answer, where {expected.refusals} was expected"
        compare(result, expected, question)
    assert not before.changes(State.of(model))
    assert all(torch.equal(each, question.graph.inputs()[name]) for name, each in inputs.items())


def _asked(subject: InspectedModel, question: Question, inputs: dict[str, Tensor]) -> InspectResult | ca.CutawayError:
    try:
        return inspect(subject, question.request, inputs)
    except ca.CutawayError as failure:
        return failure


def _leave_gradients(model: nn.Module) -> None:
    """As an owner might have: they are his, and stay."""
    for parameter in list(model.parameters())[:1]:
        parameter.grad = torch.ones_like(parameter)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def compare(result: InspectResult, expected: Expected, question: Question) -> None:
    """Every number and every warning."""
    if expected.targets is not None and result.targets is not None:
        assume(not _tie(result, expected))
    calls = {name: len(capture.calls) for name, capture in result.captures.items()}
    assert calls == {name: len(notes) for name, notes in expected.captures.items()}
    got, wanted = flat(result), dict(_tensors(expected))
    assert got.keys() == wanted.keys(), f"{got.keys() ^ wanted.keys()} on one side only"
    for name, tensor in wanted.items():
        same(name, got[name], tensor)
    compare_warnings(result, expected)
    tally["edits"] += len(question.request.edits)
    tally["edits that changed something"] += sum(each is Effect.CHANGED for each in expected.effects.values())


def _tie(result: InspectResult, expected: Expected) -> bool:
    """Whether the two chose other classes among equals: then all else differs too, and nothing is wrong."""
    if result.targets is None or expected.targets is None or np.array_equal(result.targets, expected.targets):
        return False
    values = expected.target_values
    return result.target_values is not None and values is not None and close(result.target_values, values.numpy())


def _tensors(expected: Expected) -> Iterator[tuple[str, Tensor]]:
    """All of them, by the names of `flat`."""
    for kind in ("predictions", "unedited", "input_gradients", "parameter_gradients"):
        tally[kind] += len(getattr(expected, kind))
        yield from ((f"{kind}.{name}", tensor) for name, tensor in getattr(expected, kind).items())
    for kind in ("targets", "target_values"):
        if getattr(expected, kind) is not None:
            yield kind, getattr(expected, kind)
    for place, calls in expected.captures.items():
        for number, notes in enumerate(calls):
            for (point, path), part in notes.items():
                tally[f"captures of {'operators' if ':' in place else 'modules'} at {point}"] += 1
                name = f"captures.{place}#{number}.{point}{path}"
                yield name, part.values
                if part.positions is not None:
                    yield f"{name} positions", part.positions


def compare_warnings(result: InspectResult, expected: Expected) -> None:
    """Each warning that is due, and no other."""
    got = Counter((str(each.code), each.subject) for each in result.warnings)
    effects = {
        **{f"edits[{number}]": effect for number, effect in expected.effects.items()},
        "edits": expected.all_edits,
    }
    due = Counter(expected.warnings)
    due.update(("EDIT_WITHOUT_EFFECT", subject) for subject, effect in effects.items() if effect <= Effect.NOTHING)
    unclear = {subject for subject, effect in effects.items() if effect is Effect.ROUNDING}
    for each in [key for key in (*got, *due) if key[1] in unclear]:
        got.pop(each, None)
        due.pop(each, None)
    assert got == due, f"warnings {got}, expected {due}"


def same(what: str, got: Any, wanted: Tensor) -> None:
    """Assert that an array is the tensor, but for rounding; a position that is -1 may be any."""
    assert got.shape == tuple(wanted.shape), f"{what}: shape {got.shape}, expected {tuple(wanted.shape)}"
    array = wanted.detach().numpy()
    if what.endswith(" positions"):
        assert ((got == array) | (array == -1)).all(), f"{what}: {got}, expected {wanted}"
        return
    assert str(got.dtype) == str(wanted.dtype).removeprefix("torch."), what
    assert close(got, array), f"{what}: {got}, expected {wanted}"


def close(got: Any, wanted: Any) -> bool:
    """Equal but for rounding; where the answer is sent with fewer digits, for those."""
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, wanted))
    tolerance = TOLERANCE if got.dtype == np.float64 else 1e-6
    return bool(np.allclose(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True))
