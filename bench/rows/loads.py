"""Rows that are calls a second: callers in a process of their own, `bench.parts.load`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple

from bench import questions, servers
from bench.interleaved import Measure, in_turn
from bench.pipe import Pipe
from bench.questions import MIXED, payload
from bench.row import Bench, Found
from cutaway.routes import TORCHSERVE_PREDICTIONS, predictions
from examples.digits.data import as_png, held_out

WINDOW_S = 2.0
"""For how long callers ask in one round."""

CALLERS = 32
EXPLAINERS = 8
UNBATCHED = {"CUTAWAY_BATCH": "1"}


class Door(NamedTuple):
    """Where callers knock.

    Attributes:
        kind: ``grpc`` or ``http``.
        address: host and port.
        path: the method; for http a content type and a path.
    """

    kind: str
    address: str
    path: str


class Load:
    """Callers that can be told to ask."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def ask(self, door: Door, payloads: Sequence[str], callers: int, seconds: float = WINDOW_S) -> dict[str, Any]:
        """Calls a second, latencies, and the largest reply's bytes."""
        found: dict[str, Any] = self._pipe.ask(
            {**door._asdict(), "payloads": list(payloads), "callers": callers, "seconds": seconds}
        )
        return found

    def rate(self, door: Door, payloads: Sequence[str], callers: int) -> Measure:
        """Calls a second."""
        return lambda: float(self.ask(door, payloads, callers)["rate"])

    def middle(self, door: Door, payloads: Sequence[str]) -> Measure:
        """The median seconds that a lone caller waits."""
        return lambda: median(self.ask(door, payloads, 1)["latencies"])


@contextmanager
def _digits(bench: Bench, **variables: str) -> Iterator[Door]:
    with servers.cutaway(bench.store.of("digits"), **variables) as server:
        yield inspect_door(server.address)


def inspect_door(address: str) -> Door:
    """`Inspect` of our front door."""
    return Door("grpc", address, "/cutaway.v1.InspectionService/Inspect")


def batching(bench: Bench) -> Found:
    """Calls a second with batching, over those without."""
    asked = [payload(questions.inside())]
    with _digits(bench) as on, _digits(bench, **UNBATCHED) as off, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over(
            {"with": load.rate(on, asked, CALLERS), "without": load.rate(off, asked, CALLERS)}, bench.rounds, "calls/s"
        )


def lone(bench: Bench) -> Found:
    """What batching costs the caller who has nobody to share with."""
    asked = [payload(questions.inside())]
    with _digits(bench) as on, _digits(bench, **UNBATCHED) as off, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over({"with": load.middle(on, asked), "without": load.middle(off, asked)}, bench.rounds, "s")


def ceiling(bench: Bench) -> Found:
    """How near to a TorchServe that computes nothing."""
    asked = [payload(questions.inside())]
    with ExitStack() as stack:
        ours = stack.enter_context(_digits(bench))
        load = Load(stack.enter_context(Pipe("bench.parts.load")))
        size = load.ask(ours, asked, 1, 0.5)["bytes"]
        echo = stack.enter_context(servers.torchserve(bench.scratch("echo"), "echo_handler.py", replyBytes=size))
        door = Door("grpc", echo["grpc"], TORCHSERVE_PREDICTIONS)
        theirs = [base64.b64encode(predictions("peer", "", {"inspect": base64.b64decode(asked[0])})).decode()]
        return over(
            {"ours": load.rate(ours, asked, CALLERS), "echo": load.rate(door, theirs, CALLERS)}, bench.rounds, "calls/s"
        )


def explain_rest(bench: Bench) -> Found:
    """Beside TorchServe's own handler and its REST ``/explanations``."""
    with ExitStack() as stack:
        doors = {}
        for kind, batch in _PEERS.items():
            files = bench.store.digits_files(bench.scratch(f"explain_rest-{batch}"))
            peer = stack.enter_context(servers.torchserve(files, "explain_handler.py", batchSize=batch))
            doors[kind] = Door("http", peer["rest"], "image/png /explanations/peer")
        return _explained(bench, doors, base64.b64encode(as_png(held_out().pixels[0])).decode())


def explain_litserve(bench: Bench) -> Found:
    """Beside LitServe with the same network and Captum."""
    files = bench.store.digits_files(bench.scratch("explain_litserve"))
    with ExitStack() as stack:
        addresses = {kind: stack.enter_context(servers.litserve(files, batch)) for kind, batch in _PEERS.items()}
        doors = {kind: Door("http", address, "application/json /predict") for kind, address in addresses.items()}
        image = json.dumps({"image": held_out().images[0].tolist()}).encode()
        return _explained(bench, doors, base64.b64encode(image).decode())


_PEERS = {"theirs": servers.STOCK_BATCH, f"theirs, in batches of {servers.BATCH}": servers.BATCH}


def _explained(bench: Bench, theirs: dict[str, Door], image: str) -> Found:
    """Beside a peer as it comes; aside, beside one that was told to form batches."""
    alike, checked = ([payload(questions.explained(mode))] for mode in ("off", "same_pass"))
    with _digits(bench) as ours, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over(
            {
                "ours": load.rate(ours, alike, EXPLAINERS),
                **{kind: load.rate(door, [image], EXPLAINERS) for kind, door in theirs.items()},
                "ours, checked": load.rate(ours, checked, EXPLAINERS),
            },
            bench.rounds,
            "calls/s",
        )


def mixed(bench: Bench) -> Found:
    """Sixteen callers who each want something else, beside one who wants all of it in turn."""
    asked = [payload(questions.mixed(number)) for number in range(MIXED)]
    with _digits(bench) as door, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over(
            {"together": load.rate(door, asked, MIXED), "in turn": load.rate(door, asked, 1)}, bench.rounds, "calls/s"
        )


def over(candidates: dict[str, Measure], rounds: int, unit: str) -> Found:
    """The first of ``candidates`` over the second, round by round; all are told aside."""
    found = in_turn(candidates, rounds)
    first, second, *_ = found.values()
    aside = {name: f"{median(values):.3g} {unit}" for name, values in found.items()}
    return Found([one / other for one, other in zip(first, second)], aside)
