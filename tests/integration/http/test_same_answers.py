"""The same question gets the same answer by every protocol: the same numbers, bit for bit, or the same error."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import cutaway as ca
from tests.support.doors import Ask, doors
from tests.support.mixed.mix import Outcome, Request, draw, small_models
from tests.support.reply_equality import differences
from tests.support.serving import Server

COUNT = 300
"""Sixty of them fail."""


def test_the_same_by_every_door(store: Path, server: Server) -> None:
    """Questions of all kinds, with a seed for those that draw numbers."""
    drawn = [_seeded(each) for each in draw(small_models(store), COUNT, seed=7)]
    with doors(server.address, server.http_address) as by_door:
        wrong = [fault for request in drawn for fault in _faults(request, by_door)]
    assert not wrong, "\n".join(wrong[:20])
    assert sum(request.answer is None for request in drawn) == COUNT // 5


def _seeded(request: Request) -> Request:
    return dataclasses.replace(request, asked={"seed": 3, **request.asked})


def _faults(request: Request, by_door: dict[str, Ask]) -> list[str]:
    outcomes = {name: ask(request) for name, ask in by_door.items()}
    faults = [request.wrong(outcomes["grpc"])]
    for name, outcome in outcomes.items():
        faults += [f"{request.name} by {name}: {each}" for each in _differences(outcome, outcomes["grpc"])]
    return [fault for fault in faults if fault]


def _differences(one: Outcome, other: Outcome) -> list[str]:
    if isinstance(one, ca.CutawayError) and isinstance(other, ca.CutawayError):
        told, expected = ((each.code, each.reason, each.field) for each in (one, other))
        return [] if told == expected else [f"{told}, not {expected}"]
    if isinstance(one, ca.InspectResult) and isinstance(other, ca.InspectResult):
        return list(differences(_plain(one), _plain(other), 0.0))
    return [f"{one!r:.200} and {other!r:.200}"]


def _plain(result: ca.InspectResult) -> ca.InspectResult:
    """The result without what clients add to it."""
    names = [field.name for field in dataclasses.fields(ca.InspectResult)]
    return ca.InspectResult(**{name: getattr(result, name) for name in names})
