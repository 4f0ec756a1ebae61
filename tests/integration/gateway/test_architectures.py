"""Fifteen architectures, each module that fires, four points each: what the service returns is what ``autograd`` says.

The reference (`tests.support.zoo.reference`) shares no line with the service and takes a pass for each module; the
service gets one request, over gRPC, for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.requests import PointName
from cutaway.contract.results import InspectResult
from cutaway.gateway import serve
from tests.support.zoo.architecture import Architecture
from tests.support.zoo.comparison import POINTS, assert_equal, compare
from tests.support.zoo.reference import Call, calls_of, reference, unused
from tests.support.zoo.table import ZOO

FEWEST = 2000
"""Fewer tensors compared in the whole zoo would mean that part of it went missing."""


class Tally(NamedTuple):
    """How much of one architecture was compared."""

    modules: int
    tensors: int


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """The zoo, served by one process."""
    with serve({each.name: each.build() for each in ZOO}) as server, ca.Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def tally() -> dict[str, Tally]:
    """What was compared so far, by architecture."""
    return {}


def ask(client: ca.Client, architecture: Architecture, points: tuple[PointName, ...]) -> InspectResult:
    """All modules, in one request."""
    floating = tuple(name for name, tensor in architecture.inputs.items() if tensor.is_floating_point())
    return client.inspect(
        architecture.name,
        architecture.inputs,
        target=ca.ClassIndex(architecture.target, output=architecture.output),
        captures=[ca.Capture("**", at=points)],
        input_gradients=floating if floating and "grad_input" in points else False,
    )


@pytest.mark.parametrize("architecture", ZOO, ids=lambda each: each.name)
def test_every_point_of_every_module_is_what_autograd_says(
    architecture: Architecture, client: ca.Client, tally: dict[str, Tally], record_property: Callable[..., None]
) -> None:
    """One request for everything: no module, call, tensor or gradient too many or too few, and none that is off by
    more than 1e-9 in float64."""
    wanted = reference(architecture)
    assert unused(architecture, wanted) == architecture.silent
    got = ask(client, architecture, POINTS)
    tensors = compare(got.captures, wanted, POINTS)
    assert_equal(got.input_gradients, wanted[""][0]["grad_input"], "the model's inputs")
    record_property("modules", len(wanted))
    record_property("points_compared", tensors)
    tally[architecture.name] = Tally(len(wanted), tensors)


@pytest.mark.parametrize("architecture", ZOO, ids=lambda each: each.name)
def test_values_alone_are_the_same(architecture: Architecture, client: ca.Client) -> None:
    """Where no gradient is asked for, no copy stands between a module and an operation in place behind it: what is
    captured is still what the module took and returned."""
    points: tuple[PointName, ...] = ("input", "output")
    compare(ask(client, architecture, points).captures, reference(architecture), points)


def off(calls: list[Call]) -> None:
    calls[0]["grad_output"][""].flat[0] += 1e-8


def swap(calls: list[Call]) -> None:
    calls[0]["grad_input"], calls[1]["grad_input"] = calls[1]["grad_input"], calls[0]["grad_input"]


def lose(calls: list[Call]) -> None:
    del calls[1]["grad_output"][""]


def invent(calls: list[Call]) -> None:
    calls[1]["grad_output"]["[0]"] = calls[1]["grad_output"][""]


def round_off(calls: list[Call]) -> None:
    calls[0]["output"][""] = calls[0]["output"][""].astype(np.float32)


def forget(calls: list[Call]) -> None:
    calls.pop()


@pytest.mark.parametrize("fault", [off, swap, lose, invent, round_off, forget])
def test_the_comparison_can_fail(fault: Callable[[list[Call]], None]) -> None:
    """An element that is off by 1e-8, two calls' gradients swapped, a tensor or a call too few, a tensor too many,
    float32: each is seen."""
    resnet = next(each for each in ZOO if each.name == "resnet")
    model = resnet.build()
    relu = model.get_submodule("layer1.0.relu")
    calls, wanted = calls_of(model, relu, resnet), calls_of(model, relu, resnet)
    assert compare({"relu": captured(calls)}, {"relu": wanted}, POINTS) == 8
    fault(calls)
    with pytest.raises(AssertionError, match="relu"):
        compare({"relu": captured(calls)}, {"relu": wanted}, POINTS)


def captured(calls: Sequence[Call]) -> ca.ModuleCapture:
    """The reference's calls, as if the service had returned them."""
    return ca.ModuleCapture(
        tuple(ca.CapturedCall({ca.Point(point): tensors for point, tensors in call.items()}) for call in calls)
    )


def test_the_zoo_is_large_and_says_how_large(
    tally: dict[str, Tally], capsys: pytest.CaptureFixture[str], record_property: Callable[..., None]
) -> None:
    """The number of tensors compared is reported, and cannot shrink unseen."""
    if len(tally) < len(ZOO):
        pytest.skip("a part of the zoo was selected: only the whole has a least size")
    modules, tensors = (sum(column) for column in zip(*tally.values()))
    record_property("points_compared", tensors)
    with capsys.disabled():
        print(f"\ncompared: {len(tally)} architectures, {modules} modules, {tensors} tensors at four points")
    assert len(ZOO) >= 14
    assert tensors >= FEWEST
