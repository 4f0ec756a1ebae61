"""Captures made smaller on the server: what numpy makes of the whole, in fewer bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.requests import Point, Reduction
from cutaway.contract.results import InspectResult
from cutaway.contract.tensors import Array
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.function_module import Through
from tests.support.rounding import SMALL, rounding, within

POINTS = tuple(Point)
ROWS = 3
X = {"x": torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))}


class Net(nn.Module):
    """[3, 4] to [3, 2], by way of tensors of many shapes and types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.cube = Through(lambda h: torch.tanh(h[:, :, None] * torch.linspace(-1, 2, 6)))
        self.pair = Through(lambda h: (h.mean(2), {"deep": h[:, :, :5] * 2}))
        self.whole = Through(lambda h: (h * 100).long())
        self.signs = Through(lambda h: h > 0)
        self.total = Through(lambda h: h.sum())
        self.nothing = Through(lambda h: h[:, :0])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        cube = self.cube(self.first(x))
        one, more = self.pair(cube)
        self.whole(cube), self.signs(cube), self.total(cube), self.nothing(cube)
        return self.head(one + more["deep"].square().sum(2))


def ask(*captures: ca.Capture, **asked: Any) -> InspectResult:
    """One request, by the engine itself."""
    model = Net()
    subject = InspectedModel(model, lambda given: model(**given))
    return inspect(subject, ca.InspectRequest("m", captures=captures, **asked), dict(X))


def captured(*where: Any, **wish: Any) -> dict[tuple[str, Point, str], Array]:
    """Every tensor that one capture brings, by place."""
    result = ask(ca.Capture(*where, **wish))
    return {
        (name, point, path): array
        for name, capture in result.captures.items()
        for point, leaves in capture.calls[0].leaves.items()
        for path, array in leaves.items()
    }


Numpy = Callable[[Array], Array]

SLICES: dict[str, tuple[tuple[ca.Slice, ...], Numpy]] = {
    "some rows": ((ca.Slice(0, 1, 3),), lambda a: a[1:3]),
    "one row": ((ca.Slice(0, 2, 3),), lambda a: a[2:3]),
    "channels": ((ca.Slice(1, 1, 3),), lambda a: a[:, 1:3]),
    "from the end": ((ca.Slice(1, -2),), lambda a: a[:, -2:]),
    "up to the end": ((ca.Slice(-1, None, -1),), lambda a: a[..., :-1]),
    "every other": ((ca.Slice(-1, 1, None, 2),), lambda a: a[..., 1::2]),
    "a step past the end": ((ca.Slice(1, 0, 4, 10),), lambda a: a[:, ::10]),
    "everything": ((ca.Slice(0), ca.Slice(1)), lambda a: a),
    "a corner": ((ca.Slice(2, 4), ca.Slice(0, 0, 1), ca.Slice(1, 3)), lambda a: a[:1, 3:, 4:]),
    "places": ((ca.Slice(1, indices=(3, 0, -2)),), lambda a: a[:, [3, 0, -2]]),
    "places of some rows": ((ca.Slice(0, 1), ca.Slice(-1, indices=(4, 1))), lambda a: a[1:][..., [4, 1]]),
    "places of two axes": (
        (ca.Slice(2, indices=(5, 0)), ca.Slice(1, indices=(1, 0, 2))),
        lambda a: a[:, [1, 0, 2]][..., [5, 0]],
    ),
    "places around a range": (
        (ca.Slice(0, indices=(2, 0)), ca.Slice(2, indices=(0, 3)), ca.Slice(1, 0, 3, 2)),
        lambda a: a[[2, 0]][:, :3:2][..., [0, 3]],
    ),
    "in another order": ((ca.Slice(-3, 0, 2), ca.Slice(-1, 0, 3, 2)), lambda a: a[:2, :, :3:2]),
}

REDUCTIONS: dict[str, tuple[Reduction, Numpy]] = {
    "mean": (ca.Mean((1,)), lambda a: a.mean(axis=1)),
    "mean over the last two": (ca.Mean((-1, 1)), lambda a: a.mean(axis=(1, 2))),
    "max": (ca.Max((2,)), lambda a: a.max(axis=2)),
    "max over all but rows": (ca.Max((2, 1)), lambda a: a.max(axis=(1, 2))),
    "norm": (ca.Norm((-2,)), lambda a: np.sqrt((a**2).sum(axis=1))),
    "norm over all but rows": (ca.Norm((1, 2)), lambda a: np.sqrt((a**2).sum(axis=(1, 2)))),
}


def largest(array: Array, k: int, axis: int) -> tuple[Array, Array]:
    """The k largest along an axis, largest first, and where they are."""
    order = np.argsort(-array, axis=axis, kind="stable").take(range(k), axis=axis)
    return np.take_along_axis(array, order, axis=axis), order


def alike(ours: Array, theirs: Array) -> bool:
    """Equal in shape and type; in value but for the rounding of float32, and once to the type of the reply."""
    allowed = max(rounding(torch.float32, SMALL), float(ml_dtypes.finfo(theirs.dtype).eps))
    return ours.dtype == theirs.dtype and within(ours, theirs, allowed)


@pytest.mark.parametrize("name", SLICES)
def test_a_part_is_numpys_slice_of_the_whole(name: str) -> None:
    """Values and gradients, at every point of a module and of an operator."""
    slices, cut = SLICES[name]
    cube: tuple[dict[str, Any], ...] = (
        {"module": "cube", "at": ("output", "grad_output")}, {"op": "cube:tanh#0", "at": POINTS},
    )  # fmt: skip
    for where in cube:
        whole, part = captured(**where), captured(**where, slices=slices)
        assert list(whole) == list(part)
        assert all(np.array_equal(part[place], cut(whole[place])) for place in whole)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_is_numpys_of_the_whole(name: str) -> None:
    """Values and gradients, of the whole and of a part: slices are cut first."""
    reduction, reduced = REDUCTIONS[name]
    where: dict[str, Any] = {"module": "cube", "at": ("output", "grad_output")}
    for slices, cut in ((), lambda a: a), *SLICES.values():
        whole, part = captured(**where), captured(**where, slices=slices, reduce=reduction)
        assert list(whole) == list(part)
        assert all(alike(part[place], reduced(cut(whole[place]))) for place in whole)


@pytest.mark.parametrize(("k", "axis"), [(1, -1), (3, -1), (6, 2), (2, 1), (4, -2)])
def test_the_largest_elements_come_with_their_places(k: int, axis: int) -> None:
    """Largest first, along the axis, as many as asked for; the places are int64, and count from where a part begins."""
    where: dict[str, Any] = {"module": "cube", "at": ("output", "grad_output")}
    for slices, cut in ((), lambda a: a), SLICES["some rows"]:
        whole = ask(ca.Capture(**where)).captures["cube"].calls[0]
        part = ask(ca.Capture(**where, slices=slices, reduce=ca.TopElements(k, axis))).captures["cube"].calls[0]
        for point in (Point.OUTPUT, Point.GRAD_OUTPUT):
            values, places = largest(cut(whole.leaves[point][""]), k, axis)
            assert np.array_equal(part.leaves[point][""], values)
            assert np.array_equal(
                np.take_along_axis(cut(whole.leaves[point][""]), part.positions[point][""], axis), values
            )
            assert part.positions[point][""].dtype == np.int64
            assert len(np.unique(places)) == len(np.unique(part.positions[point][""]))
    assert whole.positions == {}


TYPES: dict[str, Any] = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_numbers_are_sent_as_the_type_that_is_asked_for(name: str) -> None:
    """Values and gradients, of the whole and of what is left of it, rounded once; the model computes as ever."""
    where: dict[str, Any] = {"module": "cube", "at": ("output", "grad_output")}
    for reduction in (None, ca.Mean((1,)), ca.Max((1,)), ca.TopElements(2)):
        whole, sent = captured(**where, reduce=reduction), captured(**where, reduce=reduction, data_type=name)
        assert all(np.array_equal(sent[place], whole[place].astype(TYPES[name])) for place in whole)
        assert {array.dtype for array in sent.values()} == {np.dtype(TYPES[name])}
    plain, cast = ask(), ask(ca.Capture(**where, data_type=name))
    assert np.array_equal(plain.predictions["output"], cast.predictions["output"])
    assert np.array_equal(captured("whole")["whole", Point.OUTPUT, ""], captured("whole", data_type=name)[
        "whole", Point.OUTPUT, ""])  # fmt: skip


def test_whole_numbers_have_a_largest_and_no_mean() -> None:
    """Integers: max and the largest elements are exact; a mean or a norm would be no integer."""
    whole = captured("whole")["whole", Point.OUTPUT, ""]
    assert np.array_equal(captured("whole", reduce=ca.Max((1,)))["whole", Point.OUTPUT, ""], whole.max(axis=1))
    assert np.array_equal(
        captured("whole", reduce=ca.TopElements(2))["whole", Point.OUTPUT, ""], largest(whole, 2, -1)[0]
    )
    signs = captured("signs")["signs", Point.OUTPUT, ""]
    assert np.array_equal(captured("signs", reduce=ca.Max((1, 2)))["signs", Point.OUTPUT, ""], signs.max(axis=(1, 2)))


def test_every_tensor_of_a_module_is_reduced_or_the_one_that_is_named() -> None:
    """A module that returns several of different ranks: axes from the end fit them all."""
    whole = captured("pair", at=POINTS)
    part = captured("pair", at=POINTS, reduce=ca.Max((-1,)))
    assert list(whole) == list(part)
    assert all(np.array_equal(part[place], whole[place].max(axis=-1)) for place in whole)
    (deep,) = captured("pair", path='[1]["deep"]', reduce=ca.Max((1, 2))).items()
    assert deep[0] == ("pair", Point.OUTPUT, '[1]["deep"]')
    assert np.array_equal(deep[1], whole[deep[0]].max(axis=(1, 2)))


@pytest.mark.parametrize("reduction", [None, ca.Mean((1,)), ca.Norm((2,)), ca.TopElements(2, axis=1)])
def test_each_class_of_several_is_reduced_by_itself(reduction: Reduction | None) -> None:
    """With a top-k target a gradient has one more axis; slices and reductions count without it."""
    wish: dict[str, Any] = {"slices": (ca.Slice(2, 1, 5),), "reduce": reduction}
    both = ask(ca.Capture("cube", at="grad_output", **wish), target=ca.TopK(2))
    assert both.targets is not None
    for place, indices in enumerate(both.targets.T.tolist()):
        alone = ask(ca.Capture("cube", at="grad_output", **wish), target=ca.ClassIndex(tuple(indices)))
        ours, theirs = both.captures["cube"].calls[0], alone.captures["cube"].calls[0]
        assert np.array_equal(ours.grad_output[:, place], theirs.grad_output)
        for point, positions in theirs.positions.items():
            assert np.array_equal(ours.positions[point][""][:, place], positions[""])


PARAMETER: dict[str, tuple[dict[str, Any], Numpy]] = {
    "some rows": ({"slices": (ca.Slice(0, 1),)}, lambda a: a[1:]),
    "a column": ({"slices": (ca.Slice(-1, 2, 3),)}, lambda a: a[:, 2:3]),
    "mean over axis 0": ({"reduce": ca.Mean((0,))}, lambda a: a.mean(axis=0)),
    "max over everything": ({"reduce": ca.Max((0, 1))}, lambda a: a.max()),
    "norm of two columns": (
        {"reduce": ca.Norm((-2,)), "slices": (ca.Slice(1, 0, 2),)}, lambda a: np.sqrt((a[:, :2] ** 2).sum(axis=0))),
    "float16": ({"data_type": "float16"}, lambda a: a.astype(np.float16)),
    "bfloat16, reduced": (
        {"data_type": "bfloat16", "reduce": ca.Max((1,))}, lambda a: a.max(axis=1).astype(ml_dtypes.bfloat16)),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETER)
def test_a_parameters_gradient_is_made_smaller_like_any_tensor(name: str) -> None:
    """Its axis 0 is no batch, and may be reduced."""
    wish, numpy = PARAMETER[name]
    whole = ask(ca.Capture(parameter="head.weight")).parameter_gradients["head.weight"]
    part = ask(ca.Capture(parameter="head.weight", **wish)).parameter_gradients["head.weight"]
    assert alike(part, np.asarray(numpy(whole)))


SMALLER: Mapping[str, dict[str, Any]] = {
    "a row": {"slices": (ca.Slice(0, 0, 1),)},
    "a mean": {"reduce": ca.Mean((1, 2))},
    "the largest": {"reduce": ca.TopElements(1)},
    "half the bytes": {"data_type": "float16"},
    "all at once": {"slices": (ca.Slice(1, 0, 2),), "reduce": ca.Max((2,)), "data_type": "bfloat16"},
}


@pytest.mark.parametrize("name", SMALLER)
def test_the_reply_has_as_many_bytes_less_as_the_tensor(name: str) -> None:
    """What is cut away is not sent; a place costs eight bytes, and each tensor its description."""
    whole, part = (ask(ca.Capture("cube", **wish)) for wish in ({}, SMALLER[name]))
    saved = wire_results.encode(whole).ByteSize() - wire_results.encode(part).ByteSize()
    tensors = [result.captures["cube"].output for result in (whole, part)]
    positions = part.captures["cube"].calls[0].positions
    expected = tensors[0].nbytes - tensors[1].nbytes - sum(array[""].nbytes for array in positions.values())
    assert expected > 0
    assert abs(saved - expected) <= 32 * (1 + len(positions))


# What does not fit.

BAD: dict[str, tuple[ca.Capture, str, str]] = {
    "no such axis to cut": (ca.Capture("cube", slices=(ca.Slice(0), ca.Slice(3))), "AXIS_RANGE", "slices[1].axis"),
    "no such axis from the end": (ca.Capture("cube", slices=(ca.Slice(-4),)), "AXIS_RANGE", "slices[0].axis"),
    "an axis cut twice": (
        ca.Capture("cube", slices=(ca.Slice(1, 0, 2), ca.Slice(1, 2, 3))), "SLICE_RANGE", "slices[1].axis"),
    "an axis cut twice, once from the end": (
        ca.Capture("cube", slices=(ca.Slice(-2, 0, 2), ca.Slice(1, 0, 2))), "SLICE_RANGE", "slices[1].axis"),
    "an empty part": (ca.Capture("cube", slices=(ca.Slice(1, 2, 2),)), "SLICE_RANGE", "slices[0]"),
    "a part that ends before it begins": (ca.Capture("cube", slices=(ca.Slice(1, 3, 1),)), "SLICE_RANGE", "slices[0]"),
    "a part past the end": (ca.Capture("cube", slices=(ca.Slice(1, 0, 5),)), "SLICE_RANGE", "slices[0]"),
    "a part past the beginning": (ca.Capture("cube", slices=(ca.Slice(1, -5),)), "SLICE_RANGE", "slices[0]"),
    "rows that are not there": (ca.Capture("cube", slices=(ca.Slice(0, 3),)), "SLICE_RANGE", "slices[0]"),
    "a part of a gradient": (ca.Capture("cube", "grad_output", slices=(ca.Slice(2, 6),)), "SLICE_RANGE", "slices[0]"),
    "no such place": (ca.Capture("cube", slices=(ca.Slice(1, indices=(0, 4)),)), "SLICE_RANGE", "slices[0].indices[1]"),
    "no such place from the end": (
        ca.Capture("cube", slices=(ca.Slice(1, indices=(-5,)),)), "SLICE_RANGE", "slices[0].indices[0]"),
    "a place twice": (ca.Capture("cube", slices=(ca.Slice(1, indices=(3, -1)),)), "SLICE_RANGE", "slices[0].indices"),
    "places and a range": (
        ca.Capture("cube", slices=(ca.Slice(1, 0, indices=(1,)),)), "SLICE_RANGE", "slices[0].indices"),
    "places of an axis that is cut": (
        ca.Capture("cube", slices=(ca.Slice(1, indices=(0,)), ca.Slice(1, 0, 2))), "SLICE_RANGE", "slices[1].axis"),
    "the mean of the batch": (ca.Capture("cube", reduce=ca.Mean((0,))), "AXIS_RANGE", "reduction.mean.axes"),
    "the max of the batch, from the end": (
        ca.Capture("cube", reduce=ca.Max((1, -3))), "AXIS_RANGE", "reduction.max.axes"),
    "an axis reduced twice": (ca.Capture("cube", reduce=ca.Norm((1, -2))), "AXIS_RANGE", "reduction.norm.axes"),
    "the largest rows": (ca.Capture("cube", reduce=ca.TopElements(1, axis=0)), "AXIS_RANGE", "reduction.top_k.axis"),
    "the largest along no axis": (
        ca.Capture("cube", reduce=ca.TopElements(1, axis=3)), "AXIS_RANGE", "reduction.top_k.axis"),
    "more elements than there are": (ca.Capture("cube", reduce=ca.TopElements(7)), "AXIS_RANGE", "reduction.top_k.k"),
    "more elements than the part has": (
        ca.Capture("cube", slices=(ca.Slice(2, 0, 2),), reduce=ca.TopElements(3)), "AXIS_RANGE", "reduction.top_k.k"),
    "the mean of integers": (ca.Capture("whole", reduce=ca.Mean((1,))), "INVALID_VALUE", "reduction.mean"),
    "the norm of booleans": (ca.Capture("signs", reduce=ca.Norm((1,))), "INVALID_VALUE", "reduction.norm"),
    "the largest booleans": (ca.Capture("signs", reduce=ca.TopElements(1)), "INVALID_VALUE", "reduction.top_k"),
    "the largest of a number": (
        ca.Capture("total", reduce=ca.TopElements(1)), "AXIS_RANGE", "reduction.top_k.axis"),
    "the max of nothing": (ca.Capture("nothing", reduce=ca.Max((1,))), "AXIS_RANGE", "reduction.max.axes"),
    "the mean of nothing": (ca.Capture("nothing", reduce=ca.Mean((1,))), "AXIS_RANGE", "reduction.mean.axes"),
    "one of several that does not fit": (
        ca.Capture("pair", slices=(ca.Slice(2, 0, 1),)), "AXIS_RANGE", "slices[0].axis"),
    "one of a glob that does not fit": (ca.Capture("c*", slices=(ca.Slice(1, 0, 5),)), "SLICE_RANGE", "slices[0]"),
    "one of an operator": (
        ca.Capture(op="cube:tanh#0", slices=(ca.Slice(1, 0, 5),)), "SLICE_RANGE", "slices[0]"),
    "a parameter's rows": (
        ca.Capture(parameter="head.weight", slices=(ca.Slice(0, 0, 3),)), "SLICE_RANGE", "slices[0]"),
    "a parameter's largest": (
        ca.Capture(parameter="head.weight", reduce=ca.TopElements(1)), "INVALID_VALUE", "reduction"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_by_its_field(name: str) -> None:
    """By the capture's own number, wherever it stands among others."""
    capture, reason, field = BAD[name]
    for before in ((), (ca.Capture("first"),)):
        with pytest.raises(ca.InvalidArgument) as caught:
            ask(*before, capture)
        expected = f"captures[{len(before)}].{field}".rstrip(".")
        assert (caught.value.reason, caught.value.field) == (reason, expected), caught.value


@pytest.mark.parametrize("name", ["int8", "int64", "bool", "uint8", "double", "FLOAT16"])
def test_what_is_no_floating_type_is_no_type_to_send_numbers_as(name: str) -> None:
    """A gradient as integers would be none."""
    with pytest.raises(ca.InvalidArgument) as caught:
        wire_requests.encode(ca.InspectRequest("m", captures=(ca.Capture("cube", data_type=name),)))
    assert (caught.value.reason, caught.value.field) == ("INVALID_VALUE", "captures[0].data_type")


WAYS: tuple[dict[str, Any], ...] = (
    {}, {"slices": (ca.Slice(0, 0, 1),)}, {"reduce": ca.Mean((-1,))}, {"reduce": ca.Max((-1,))},
    {"data_type": "float16"}, {"call": 0}, {"path": "[0]"},
)  # fmt: skip


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(WAYS, 2)))
def test_one_place_is_captured_in_one_way(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The reply has one place for it. By its name twice, or by a glob that comes before or behind."""
    for names in (("cube", "cube"), ("cub?", "cube"), ("cube", "c*")):
        with pytest.raises(ca.InvalidArgument, match="captured twice") as caught:
            ask(*(ca.Capture(name, **wish) for name, wish in zip(names, (one, other))))
        assert (caught.value.reason, caught.value.field) == ("INVALID_VALUE", "captures[1]")


def test_other_points_and_other_places_have_ways_of_their_own() -> None:
    """The same way twice is one way; the input may be cut where the output is whole."""
    result = ask(
        ca.Capture("cube", reduce=ca.Mean((1,))), ca.Capture("cu*", reduce=ca.Mean((1,))),
        ca.Capture("cube", at="input", slices=(ca.Slice(1, 0, 2),)), ca.Capture("first", data_type="float16"),
        ca.Capture(op="cube:tanh#0"),
    )  # fmt: skip
    assert result.captures["cube"].output.shape == (ROWS, 6)
    assert result.captures["cube"].input.shape == (ROWS, 2)
    assert result.captures["first"].output.dtype == np.float16
    assert result.captures["cube:tanh#0"].output.shape == (ROWS, 4, 6)


@pytest.mark.parametrize("reduction", [ca.Mean((3,)), ca.Max((1, 5)), ca.Norm((-4,))])
def test_an_axis_that_is_not_there_is_refused_by_its_field(reduction: ca.Mean | ca.Max | ca.Norm) -> None:
    """The contract's field is ``axes``."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(ca.Capture("cube", reduce=reduction))
    name = type(reduction).__name__.lower()
    assert (caught.value.reason, caught.value.field) == ("AXIS_RANGE", f"captures[0].reduction.{name}.axes")


def test_each_class_of_several_has_a_parameters_gradient_made_smaller_by_itself() -> None:
    """The axis of the classes is none of the parameter's: slices and reductions count without it."""
    for wish, _ in PARAMETER.values():
        capture = ca.Capture(parameter="head.weight", **wish)
        both = ask(capture, target=ca.TopK(2))
        assert both.targets is not None
        for gradient, classes in zip(both.parameter_gradients["head.weight"], both.targets.T.tolist(), strict=True):
            alone = ask(capture, target=ca.ClassIndex(tuple(classes)))
            assert np.array_equal(gradient, alone.parameter_gradients["head.weight"])


@pytest.mark.parametrize("names", [("head.weight", "head.weight"), ("*.weight", "head.weight")])
def test_one_parameter_is_captured_in_one_way(names: tuple[str, str]) -> None:
    """As a module is: the second must not win in silence."""
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(ca.Capture(parameter=names[0]), ca.Capture(parameter=names[1], reduce=ca.Mean((0,))))
    assert (caught.value.reason, caught.value.field) == ("INVALID_VALUE", "captures[1]")


@pytest.mark.parametrize("reduction", [ca.Max((1,)), ca.TopElements(1)])
def test_complex_numbers_have_no_largest(reduction: Reduction) -> None:
    """Refused as a mean of integers is: the request is at fault, and not the server."""
    model = nn.Sequential(Through(torch.fft.fft), Through(lambda h: h.abs()))
    subject = InspectedModel(model, lambda given: model(given["x"]))
    with pytest.raises(ca.InvalidArgument) as caught:
        inspect(subject, ca.InspectRequest("m", captures=(ca.Capture("0", reduce=reduction),)), dict(X))
    assert caught.value.reason == "INVALID_VALUE"
