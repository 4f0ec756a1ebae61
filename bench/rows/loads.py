"""Rows in calls per second; the load generator `bench.parts.load` runs in its own process."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple

from bench import requests, servers
from bench.interleaved import Measure, in_turn
from bench.pipe import Pipe
from bench.requests import MIXED, payload
from bench.row import Bench, Found
from cutaway.contract.torchserve_messages import PREDICTIONS, encode_call
from examples.digits.data import as_png, held_out

WINDOW_S = 2.0
"""Seconds of load in one round."""

CALLERS = 32
EXPLAINERS = 8
UNBATCHED = {"CUTAWAY_MAX_BATCH_SIZE": "1"}


class Door(NamedTuple):
    """An endpoint under load.

    Attributes:
        kind: ``grpc`` or ``http``.
        address: host and port.
        path: the gRPC method; for http a content type and a path.
    """

    kind: str
    address: str
    path: str


class Load:
    """Controls the load generator."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def ask(
        self,
        door: Door,
        payloads: Sequence[str],
        callers: int,
        seconds: float = WINDOW_S,
        each: int = 0,
        pause: float = 0.0,
    ) -> dict[str, Any]:
        """Runs the load; returns calls per second, latencies, and the size of the largest reply."""
        found: dict[str, Any] = self._pipe.ask(
            {
                **door._asdict(),
                "payloads": list(payloads),
                "callers": callers,
                "seconds": seconds,
                "each": each,
                "pause": pause,
            }
        )
        return found

    def rate(self, door: Door, payloads: Sequence[str], callers: int, each: int = 0) -> Measure:
        """Runs the load and returns calls per second; of callers with ``each`` calls, if that is not 0."""
        return lambda: float(self.ask(door, payloads, callers, each=each)["rate"])

    def middle(self, door: Door, payloads: Sequence[str]) -> Measure:
        """Runs one caller and returns its median latency in seconds."""
        return lambda: median(self.ask(door, payloads, 1)["latencies"])


@contextmanager
def _digits(bench: Bench, **variables: str) -> Iterator[Door]:
    with servers.cutaway(bench.store.of("digits"), **variables) as server:
        yield inspect_door(server.address)


def inspect_door(address: str) -> Door:
    """Returns the endpoint of our `Inspect` method."""
    return Door("grpc", address, "/cutaway.v1.InspectionService/Inspect")


def batching(bench: Bench) -> Found:
    """Measures calls per second with batching against without."""
    asked = [payload(requests.inside())]
    with _digits(bench) as on, _digits(bench, **UNBATCHED) as off, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over(
            {"with": load.rate(on, asked, CALLERS), "without": load.rate(off, asked, CALLERS)}, bench.rounds, "calls/s"
        )


def lone(bench: Bench) -> Found:
    """Measures the latency of a lone caller with batching against without."""
    asked = [payload(requests.inside())]
    with _digits(bench) as on, _digits(bench, **UNBATCHED) as off, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over({"with": load.middle(on, asked), "without": load.middle(off, asked)}, bench.rounds, "s")


def ceiling(bench: Bench) -> Found:
    """Measures calls per second against a TorchServe that computes nothing."""
    asked = [payload(requests.inside())]
    with ExitStack() as stack:
        ours = stack.enter_context(_digits(bench))
        load = Load(stack.enter_context(Pipe("bench.parts.load")))
        size = load.ask(ours, asked, 1, 0.5)["bytes"]
        echo = stack.enter_context(servers.torchserve(bench.scratch("echo"), "echo_handler.py", replyBytes=size))
        door = Door("grpc", echo["grpc"], PREDICTIONS)
        theirs = [base64.b64encode(encode_call("peer", "", {"inspect": base64.b64decode(asked[0])})).decode()]
        return over(
            {"ours": load.rate(ours, asked, CALLERS), "echo": load.rate(door, theirs, CALLERS)}, bench.rounds, "calls/s"
        )


def explain_rest(bench: Bench) -> Found:
    """Measures against TorchServe's own handler and its REST ``/explanations``."""
    with ExitStack() as stack:
        doors = {}
        for kind, batch in _PEERS.items():
            files = bench.store.digits_files(bench.scratch(f"explain_rest-{batch}"))
            peer = stack.enter_context(servers.torchserve(files, "explain_handler.py", batchSize=batch))
            doors[kind] = Door("http", peer["rest"], "image/png /explanations/peer")
        return _explained(bench, doors, base64.b64encode(as_png(held_out().pixels[0])).decode())


def explain_litserve(bench: Bench) -> Found:
    """Measures against LitServe with the same network and Captum."""
    files = bench.store.digits_files(bench.scratch("explain_litserve"))
    with ExitStack() as stack:
        addresses = {kind: stack.enter_context(servers.litserve(files, batch)) for kind, batch in _PEERS.items()}
        doors = {kind: Door("http", address, "application/json /predict") for kind, address in addresses.items()}
        image = json.dumps({"image": held_out().images[0].tolist()}).encode()
        return _explained(bench, doors, base64.b64encode(image).decode())


_PEERS = {"theirs": servers.STOCK_BATCH, f"theirs, in batches of {servers.BATCH}": servers.BATCH}


def _explained(bench: Bench, theirs: dict[str, Door], image: str) -> Found:
    """Measures against a peer with its defaults; aside, against one configured to form batches."""
    alike, checked = ([payload(requests.explained(mode))] for mode in ("off", "same_pass"))
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
    """Measures sixteen callers with different requests against the same requests one after another."""
    asked = [payload(requests.mixed(number)) for number in range(MIXED)]
    with _digits(bench) as door, Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        return over(
            {"together": load.rate(door, asked, MIXED), "in turn": load.rate(door, asked, 1)}, bench.rounds, "calls/s"
        )


def over(candidates: dict[str, Measure], rounds: int, unit: str) -> Found:
    """Returns the rate of the first candidate divided by the second's, per round; all rates go aside."""
    found = in_turn(candidates, rounds)
    first, second, *_ = found.values()
    aside = {name: f"{median(values):.3g} {unit}" for name, values in found.items()}
    return Found([one / other for one, other in zip(first, second)], aside)
