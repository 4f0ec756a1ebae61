"""Rows about networks of real size: ours against hooks and Captum by hand, in process and as a service."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np

import cutaway as ca
from bench import servers
from bench.peers.by_hand_service import decode
from bench.peers.real_service import SERVICE
from bench.pipe import CannotRun, Pipe
from bench.real import MODELS
from bench.requests import QUESTIONS, payload, real
from bench.row import Bench, Found, Row
from bench.rows.loads import Door, Load, inspect_door, over
from cutaway.contract.tensors import Array
from cutaway.server.processes.environment import WAITING

CALLERS = 8

_OPTIONS = (("grpc.max_receive_message_length", -1),)

_TOLERANCE = 2e-3
"""Allowed difference of two answers, relative to the largest element: passes of other sizes round otherwise."""

_LONE = {"inside": 1.05, "ig_checked": 1.2}
_TOGETHER = 1.3

_SHORT_S = 0.5
"""Calls that take less are repeated, up to `_MOST` times a round, and their median counts."""

_MOST = 20


@dataclass
class Sides:
    """The processes of one network: ours, the service by hand, what is by hand in process, and callers.

    Those of one network run at a time.
    """

    _network: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)
    _compared: set[str] = field(default_factory=set)

    def open(self, bench: Bench, network: str) -> Sides:
        """Starts the processes of ``network``, unless they run."""
        if network != self._network:
            self.close()
            self._network = network
            enter = self._stack.enter_context
            self._compared.clear()
            patient = {"CUTAWAY_DEFAULT_DEADLINE_S": "3600", **WAITING}
            self.ours = enter(servers.cutaway(bench.store.real(network), "processes", **patient)).address
            self.theirs = enter(servers.real_by_hand(network))
            self.hand = enter(Pipe("bench.peers.real_service", network, "in process", variables=WAITING))
            self.client = enter(Pipe("bench.parts.client", self.ours))
            self.load = Load(enter(Pipe("bench.parts.load")))
        return self

    def calls(self, question: str) -> int:
        """Returns how many calls a measurement has: one that is long enough, or many short ones."""
        (once,) = self.hand.ask({"question": question, "count": 1})
        return max(1, min(_MOST, int(_SHORT_S / once)))

    def compare(self, network: str, question: str) -> None:
        """Asks both services, unless they were asked before.

        Raises:
            CannotRun: the answers differ by more than rounding.
        """
        if question in self._compared:
            return
        model, inputs, options = real(network, question)
        with ca.Client(self.ours, timeout=3600) as client, grpc.insecure_channel(self.theirs, _OPTIONS) as channel:
            found = arrays(network, question, client.inspect(model, inputs, **options))
            call: Any = channel.unary_unary(f"/{SERVICE}/{question}")
            expected = decode(call(_bytes(network, 0)))
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            if not np.allclose(one.ravel(), other, rtol=0, atol=_TOLERANCE * np.abs(other).max()):
                raise CannotRun(f"{network}, {question}: tensor {number} differs from that of the service by hand")
        self._compared.add(question)

    def close(self) -> None:
        """Ends the processes."""
        self._stack.close()
        self._network = ""


_FIRST = ("bert", "resnet50", "deep")

_IDLE_S = 60.0


def table(sides: Sides) -> Iterator[Row]:
    """Yields the first questions; then two rows for each question about a network: of a lone caller, and of eight."""
    for network in _FIRST:
        what = f"{MODELS[network].name}: checked IG, the first, a minute after the start / the second"
        yield Row(f"{network}_first", what, False, 1.5, partial(first, network=network))
    for network, of in MODELS.items():
        for question, words in QUESTIONS.items():
            name = f"{network}_{question}"
            yield Row(
                name,
                f"{of.name}, {words}: p50 of a lone caller / by hand in process",
                question not in _LONE,
                _LONE.get(question, 0),
                partial(lone, sides=sides, network=network, question=question),
            )
            if question == "inside":
                what = "the same by a service by hand / by hand in process: no service is faster"
                yield Row(f"{name}_floor", what, True, 0, partial(floor, sides=sides, network=network))
            yield Row(f"{name}_8", f"the same, {CALLERS} callers: calls/s / a service by hand", True, _TOGETHER,
                      partial(together, sides=sides, network=network, question=question))  # fmt: skip


def lone(bench: Bench, sides: Sides, network: str, question: str) -> Found:
    """Measures the latency of a lone caller against hooks and Captum in the caller's own process."""
    sides.open(bench, network)
    sides.compare(network, question)
    count = sides.calls(question)
    asked = {"question": "real", "given": {"network": network, "question": question}, "count": count}
    return over(
        {
            "ours": lambda: median(sides.client.ask(asked)),
            "by hand": lambda: median(sides.hand.ask({"question": question, "count": count})),
        },
        bench.rounds,
        "s",
    )


def floor(bench: Bench, sides: Sides, network: str) -> Found:
    """Measures what gRPC alone adds to captures with a gradient: the service by hand against the same in process."""
    sides.open(bench, network)
    sides.compare(network, "inside")
    count = sides.calls("inside")
    door, raw = Door("grpc", sides.theirs, f"/{SERVICE}/inside"), base64.b64encode(_bytes(network, 0)).decode()
    return over(
        {
            "by a service": lambda: median(sides.load.ask(door, [raw], 1, each=count)["latencies"]),
            "by hand": lambda: median(sides.hand.ask({"question": "inside", "count": count})),
        },
        bench.rounds,
        "s",
    )


def together(bench: Bench, sides: Sides, network: str, question: str) -> Found:
    """Measures the calls per second of eight callers, each with a row of its own, against the service by hand."""
    sides.open(bench, network)
    sides.compare(network, question)
    each = sides.calls(question)
    ours = [payload(real(network, question, seed)) for seed in range(CALLERS)]
    raw = [base64.b64encode(_bytes(network, seed)).decode() for seed in range(CALLERS)]
    theirs = Door("grpc", sides.theirs, f"/{SERVICE}/{question}")
    return over(
        {
            "ours": sides.load.rate(inspect_door(sides.ours), ours, CALLERS, each),
            "by hand": sides.load.rate(theirs, raw, CALLERS, each),
        },
        bench.rounds,
        "calls/s",
    )


def first(bench: Bench, network: str) -> Found:
    """Measures the first explanation of a server that was idle, and began without proofs, against the second."""
    ratios, aside = [], dict[str, list[float]]()
    model, inputs, options = real(network, "ig_checked")
    for _ in range(bench.rounds):
        with (
            TemporaryDirectory() as proofs,
            servers.cutaway(
                bench.store.real(network),
                "processes",
                CUTAWAY_PROOFS_DIR=proofs,
                CUTAWAY_IDLE_TESTS_S="120",
                CUTAWAY_DEFAULT_DEADLINE_S="3600",
                **WAITING,
            ) as server,
            ca.Client(server.address, timeout=3600) as client,
        ):
            time.sleep(_IDLE_S)
            for name in ("first", "second"):
                start = time.perf_counter()
                client.inspect(model, inputs, **options)
                aside.setdefault(name, []).append(time.perf_counter() - start)
        ratios.append(aside["first"][-1] / aside["second"][-1])
    return Found(ratios, {name: f"{median(values):.3g} s" for name, values in aside.items()})


def arrays(network: str, question: str, result: ca.InspectResult) -> list[Array]:
    """Returns the tensors of our reply, in the order of the service by hand."""
    of, output = MODELS[network], result.predictions["output"]
    if question == "predict":
        return [output]
    if question == "inside":
        at = result.captures[of.embedding].grad_output if of.embedding else result.input_gradients[of.explained]
        return [*(result.captures[layer].output for layer in of.layers), output, at]
    return [output, next(iter(result.attributions[0].values.values()))]


def _bytes(network: str, seed: int) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in MODELS[network].rows(seed).values())
