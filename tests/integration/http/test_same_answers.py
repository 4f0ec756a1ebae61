"""The same question gets the same answer by every protocol: the same numbers, bit for bit, or the same error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cutaway as ca
from tests.support.doors import Ask, doors, plain, seeded
from tests.support.infer_doors import Infer, Inferred, as_inferred, infer_doors
from tests.support.mixed.mix import Outcome, Request, draw, one_of_each, small_models
from tests.support.reply_equality import differences
from tests.support.serving import Server


@pytest.mark.parametrize("chosen", [one_of_each, pytest.param(list, marks=pytest.mark.slow)])
def test_the_same_by_every_door(store: Path, server: Server, chosen: Callable[[list[Request]], list[Request]]) -> None:
    """Questions of all kinds, with a seed for those that draw numbers; many of them fail."""
    drawn = [seeded(each) for each in chosen(draw(small_models(store), 300, seed=7))]
    places = server.address, server.http_address
    with doors(*places) as by_door, infer_doors(*places) as by_infer_door:
        wrong = [fault for request in drawn for fault in _faults(request, by_door, by_infer_door)]
    assert not wrong, "\n".join(wrong[:20])
    assert sum(request.answer is None for request in drawn) > len(drawn) // 8


def _faults(request: Request, by_door: dict[str, Ask], by_infer_door: dict[str, Infer]) -> list[str]:
    outcomes = {name: ask(request) for name, ask in by_door.items()}
    faults = [request.wrong(outcomes["grpc"])]
    for name, outcome in outcomes.items():
        faults += [f"{request.name} by {name}: {each}" for each in _differences(outcome, outcomes["grpc"])]
    for name, ask_infer in by_infer_door.items():
        inferred = _inferred_differences(ask_infer(request), outcomes["grpc"])
        faults += [f"{request.name} by {name}: {each}" for each in inferred]
    return [fault for fault in faults if fault]


def _differences(one: Outcome, other: Outcome) -> list[str]:
    if isinstance(one, ca.CutawayError) and isinstance(other, ca.CutawayError):
        told, expected = ((each.code, each.reason, each.field) for each in (one, other))
        return [] if told == expected else [f"{told}, not {expected}"]
    if isinstance(one, ca.InspectResult) and isinstance(other, ca.InspectResult):
        return list(differences(plain(one), plain(other), 0.0))
    return [f"{one!r:.200} and {other!r:.200}"]


def _inferred_differences(one: Inferred | ca.CutawayError, other: Outcome) -> list[str]:
    """The same, for a protocol whose fields have other names."""
    if isinstance(one, ca.CutawayError) and isinstance(other, ca.CutawayError):
        return [] if one.reason == other.reason else [f"{one}, not {other}"]
    if isinstance(one, Inferred) and isinstance(other, ca.InspectResult):
        expected = as_inferred(plain(other))
        return [*differences(one.outputs, expected.outputs, 0.0), *differences(one.result, expected.result, 0.0)]
    return [f"{one!r:.200} and {other!r:.200}"]
