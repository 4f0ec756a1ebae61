"""Rows against a service by hand: the same network, hooks and Captum in sixty lines over grpc.aio."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import numpy as np

import cutaway as ca
from bench import requests, servers
from bench.peers.by_hand_service import EXPLAIN, INSPECT, LAYERS, decode
from bench.pipe import CannotRun, Pipe
from bench.requests import Request, payload
from bench.row import Bench, Found
from bench.rows.loads import Door, Load, inspect_door, over
from cutaway.contract.tensors import Array
from cutaway.server.processes.environment import WAITING

_TOLERANCE = 1e-4
"""Allowed difference of two answers, relative to the largest element: rounding of float32."""


class Question(NamedTuple):
    """A request that both services answer.

    Attributes:
        request: returns our request.
        path: the gRPC method of the service by hand.
        tensors: the tensors of our reply, in the order of the service by hand.
        variables: of the service by hand: one thread where it answers more calls so.
    """

    request: Callable[[], Request]
    path: str
    tensors: Callable[[ca.InspectResult], list[Array]]
    variables: dict[str, str]


INSIDE = Question(
    requests.inside,
    INSPECT,
    lambda result: [
        *(result.captures[layer].output for layer in LAYERS),
        result.predictions["output"],
        result.input_gradients["image"],
    ],
    {"OMP_NUM_THREADS": "1"},
)
EXPLAINED = Question(
    requests.explained,
    EXPLAIN,
    lambda result: [result.predictions["output"], result.attributions[0].values["image"]],
    {},
)


class Side(NamedTuple):
    """One side of a ratio: its endpoint and its serialized requests as base64."""

    door: Door
    payloads: list[str]


def lone(bench: Bench, engine: str) -> Found:
    """Measures the latency of a lone caller of `INSIDE`, with our models in ``engine``."""
    with _both(bench, INSIDE, engine) as (load, ours, theirs):
        return over({"ours": load.middle(*ours), "by hand": load.middle(*theirs)}, bench.rounds, "s")


def rate(bench: Bench, question: Question, callers: int) -> Found:
    """Measures calls per second."""
    with _both(bench, question, "torchserve") as (load, ours, theirs):
        return over(
            {"ours": load.rate(*ours, callers), "by hand": load.rate(*theirs, callers)}, bench.rounds, "calls/s"
        )


@contextmanager
def _both(bench: Bench, question: Question, engine: str) -> Iterator[tuple[Load, Side, Side]]:
    files = bench.store.digits_files(bench.scratch("by_hand"))
    with (
        servers.cutaway(bench.store.of("digits"), engine, **WAITING) as ours,
        servers.by_hand(files, **question.variables) as theirs,
        Pipe("bench.parts.load") as pipe,
    ):
        compare(question, ours.address, theirs)
        raw = base64.b64encode(_image(question)).decode()
        yield (
            Load(pipe),
            Side(inspect_door(ours.address), [payload(question.request())]),
            Side(Door("grpc", theirs, question.path), [raw]),
        )


def compare(question: Question, ours: str, theirs: str) -> None:
    """Sends ``question`` to both addresses.

    Raises:
        CannotRun: the answers differ by more than rounding.
    """
    model, inputs, options = question.request()
    with ca.Client(ours, timeout=300) as client, grpc.insecure_channel(theirs) as channel:
        found = question.tensors(client.inspect(model, inputs, **options))
        call: Any = channel.unary_unary(question.path)
        expected = decode(call(_image(question)))
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not np.allclose(one.ravel(), other, rtol=0, atol=_TOLERANCE * np.abs(other).max()):
            raise CannotRun(f"{question.path}: tensor {number} of our answer differs from that of the service by hand")


def _image(question: Question) -> bytes:
    _, inputs, _ = question.request()
    image: bytes = inputs["image"].tobytes()
    return image
