"""Arrays of a result by name: none hides another, and a file of numpy has them all."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.requests import InspectRequest, Point
from cutaway.contract.results import AttributionResult, CapturedCall, InspectResult, MetricResult, ModuleCapture
from cutaway.contract.results.arrays import (
    ArrayField,
    Entry,
    by_name,
    entries,
    examples_first,
    tensors,
    with_arrays,
    write_npz,
)
from cutaway.contract.results.summary import batch_size
from cutaway.contract.tensors import Array
from cutaway.contract.wire import results as wire_results
from cutaway.jobs.columns import flattened
from cutaway.jobs.spec import parse_request
from cutaway.views.inspection import Inspection


def attribution(method: str, layer: str = "", **fields: Any) -> AttributionResult:
    return AttributionResult(method, layer, {layer or "image": np.zeros((1, 2))}, **fields)


def test_all_arrays_of_an_attribution_have_its_name() -> None:
    """A second one by the same method is ``#1``, whatever its layer; numbers by row are not among the tensors."""
    one = attribution("LayerGradCam", "conv", convergence_delta=np.zeros(1))
    judged = (MetricResult("infidelity", np.zeros(1)),)
    other = attribution("LayerGradCam", "fc", convergence_delta=np.zeros(1), metrics=judged)
    result = InspectResult({"output": np.zeros((1, 3))}, attributions=(one, other))
    assert list(by_name(entries(result))) == [
        *("output", "attribution:layer_grad_cam:conv", "convergence_delta:layer_grad_cam"),
        *("attribution:layer_grad_cam#1:fc", "convergence_delta:layer_grad_cam#1"),
        "metric:layer_grad_cam#1:infidelity",
    ]
    assert list(by_name(tensors(result))) == [
        *("output", "attribution:layer_grad_cam:conv", "attribution:layer_grad_cam#1:fc")
    ]


def test_a_captured_tensor_has_the_number_of_its_call() -> None:
    """Also where the first call has none at that point; names of modules may have dots, colons and numbers."""
    calls = (
        CapturedCall({Point.OUTPUT: {"": np.zeros(1)}}),
        CapturedCall({Point.OUTPUT: {"[0]": np.ones(1)}, Point.GRAD_OUTPUT: {"": np.ones(1)}}),
    )
    result = InspectResult({}, captures={"layer.3:relu#0": ModuleCapture(calls), "": ModuleCapture(calls[:1])})
    assert list(by_name(entries(result))) == [
        "capture:layer.3:relu#0@output",
        "capture:layer.3:relu#0@output:[0]#1",
        "capture:layer.3:relu#0@grad_output#1",
        "capture:@output",
    ]


def test_no_array_hides_another() -> None:
    """An output may have any name: that of another array, or of a column that a table has anyway."""
    hidden = ("gradient:x", "targets", "label")
    result = InspectResult(
        dict.fromkeys(hidden, np.zeros(1)), input_gradients={"x": np.ones(1)}, targets=np.ones(1, np.int64)
    )
    assert list(by_name(entries(result), ("label",))) == [*hidden[:2], "label#1", "targets#1", "gradient:x#1"]


@pytest.mark.parametrize("make", [InspectResult, ca.Inspection])
def test_arrays_are_replaced_and_nothing_else(make: type[InspectResult]) -> None:
    """The result is of the same class, its parts are what they were, and the one before stays as it was."""
    call = CapturedCall({Point.OUTPUT: {"": np.ones(2)}}, {Point.OUTPUT: {"": np.ones(2)}})
    one = attribution("Saliency", targets=np.ones(1, np.int64), n_steps=3)
    result = make({"output": np.ones(2)}, captures={"m": ModuleCapture((call, call))}, attributions=(one,))
    seen: list[str] = []

    def noted(array: Array, field: ArrayField, *rest: Any) -> Array:
        seen.append(Entry(array, field, *rest).name)
        return array * 2

    twice = with_arrays(result, noted)
    assert seen == list(by_name(entries(result)))
    assert {"output", "capture:m@output", "positions:m@output#1", "targets:saliency"} < set(seen)
    assert type(twice) is make
    assert twice.attributions[0].n_steps == 3
    assert all((entry.array == 2 * before.array).all() for entry, before in zip(entries(twice), entries(result)))


def test_any_name_and_type_is_in_the_file() -> None:
    """Those of arguments of `numpy.savez` too; bfloat16 as float32, which has its exact values."""
    values = np.array([0.5, -3.0], ml_dtypes.bfloat16)
    file = io.BytesIO()
    write_npz(file, by_name(entries(InspectResult({"file": np.arange(2), "a/b": values, "": np.ones(1)}))))
    with np.load(io.BytesIO(file.getvalue())) as saved:
        assert saved.files == ["file", "a/b", ""]
        assert saved["file"].tolist() == [0, 1]
        assert (saved["a/b"].dtype, saved["a/b"].tolist()) == (np.dtype("float32"), [0.5, -3.0])


def behind() -> InspectResult:
    """A result whose capture is `[time, batch, features]`, with three times and two examples."""
    values = np.arange(24.0, dtype=np.float32).reshape(3, 2, 4)
    return InspectResult(
        {"output": np.zeros((2, 3), np.float32), "tokens": np.zeros((6, 4), np.float32)},
        captures={"rnn": ModuleCapture((CapturedCall({Point.OUTPUT: {"[0]": values}}),))},
        attributions=(AttributionResult("LayerActivation", "rnn", {"rnn": values}),),
        example_axes={"capture:rnn@output:[0]": 1, "attribution:layer_activation:rnn": 1, "tokens": None},
    )


def test_the_axis_of_examples_goes_over_the_wire() -> None:
    """It is 0 where it is not named, and none is told from 0."""
    axes = wire_results.decode(wire_results.encode(behind())).example_axes
    assert axes == behind().example_axes
    assert [entry.example_axis for entry in entries(behind())] == [0, None, 1, 1]


def test_examples_can_be_put_first() -> None:
    """Every array but those without an axis of examples; one whose examples are first stays itself."""
    first = examples_first(behind())
    given = behind().captures["rnn"].calls[0].leaves[Point.OUTPUT]["[0]"]
    shown = first.captures["rnn"].calls[0].leaves[Point.OUTPUT]["[0]"]
    assert np.array_equal(shown, given.swapaxes(0, 1))
    assert np.array_equal(first.attributions[0].values["rnn"], shown)
    assert first.example_axes == {"tokens": None}
    assert examples_first(first) is first
    assert batch_size(behind()) == 2


def test_tables_and_jobs_read_examples_where_they_are() -> None:
    """A long table and the columns of a job have the rows of the examples; an array without such rows is refused."""
    result = Inspection.of(behind(), InspectRequest("m"))
    frame = result.to_pandas()
    assert list(frame[(frame.example == 1) & (frame.position == 2)].value) == [20.0, 21.0, 22.0, 23.0]
    template = parse_request({"attributions": [{"method": "layer_activation", "layer": "rnn"}]}, "predicted")
    kept = replace(behind(), predictions={})
    columns = {cells.name: cells.values for cells in flattened(kept, template, 2)}
    assert columns["attribution:layer_activation:rnn"].shape == (2, 3, 4)  # type: ignore[union-attr]
    with pytest.raises(ca.InvalidArgument, match="tokens#1 has no axis of rows"):
        list(flattened(behind(), template, 2))
    of_parameters = replace(kept, parameter_gradients={"w": np.zeros((2, 4))})
    with pytest.raises(ca.InvalidArgument, match="parameter_gradient:w has no axis of rows"):
        list(flattened(of_parameters, template, 2))
