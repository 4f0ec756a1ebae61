"""Arrays of a result by name: none hides another, and a file of numpy has them all."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np

import cutaway as ca
from cutaway.contract.results import AttributionResult
from cutaway.contract.results.arrays import NamedArray, named_arrays, named_tensors, write_npz


def test_a_name_that_comes_again_is_numbered() -> None:
    """Two explanations by one method; numbers by row come after the tensors, and only in `named_arrays`."""
    one, other = (
        AttributionResult("LayerGradCam", "conv", {"conv": np.full((1, 2), value)}, convergence_delta=np.zeros(1))
        for value in (1.0, 2.0)
    )
    result = ca.InspectResult({"output": np.zeros((1, 3))}, attributions=(one, other))
    tensors = ["output", "attribution:layer_grad_cam:conv", "attribution:layer_grad_cam:conv#1"]
    deltas = ["convergence_delta:layer_grad_cam", "convergence_delta:layer_grad_cam#1"]
    assert [each.name for each in named_tensors(result)] == tensors
    assert [each.name for each in named_arrays(result)] == [*tensors, *deltas]


def test_any_name_and_type_is_in_the_file() -> None:
    """Those of arguments of `numpy.savez` too; bfloat16 as float32, which has its exact values."""
    values = np.array([0.5, -3.0], ml_dtypes.bfloat16)
    file = io.BytesIO()
    write_npz(file, [NamedArray("file", np.arange(2)), NamedArray("a/b", values), NamedArray("", np.ones(1))])
    with np.load(io.BytesIO(file.getvalue())) as saved:
        assert saved.files == ["file", "a/b", ""]
        assert saved["file"].tolist() == [0, 1]
        assert (saved["a/b"].dtype, saved["a/b"].tolist()) == (np.dtype("float32"), [0.5, -3.0])
