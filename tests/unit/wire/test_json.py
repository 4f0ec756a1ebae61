"""What a JSON text says twice, or cannot say, is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import cutaway as ca
from cutaway.contract.errors import Reason
from cutaway.contract.json_text import MAX_DEPTH, read_json
from cutaway.contract.request_reader.reader import choice
from cutaway.contract.values import brief
from cutaway.server.http.json_messages import binary_of, mapping_in
from cutaway.v1.inspection_pb2 import InspectRequest

PATH = {"integratedGradients": {"path": {"nSteps": 2, "n_steps": 3}}}
RULES = {"lrp": {"rules": {"conv": {"epsilon": 1}, "co.nv": {"alphaOneBetaZero": {}, "alpha_one_beta_zero": {}}}}}
PLACE = {"attributionErrorsInPlace": True, "attribution_errors_in_place": False}
TWICE: dict[str, tuple[dict[str, Any], str]] = {
    "a field": (PLACE, "attribution_errors_in_place"),
    "one of them nothing": ({"inputGradients": {}, "input_gradients": None}, "input_gradients"),
    "a message": ({"input_gradients": {"inputs": ["a"]}, "inputGradients": {"inputs": ["b"]}}, "input_gradients"),
    "in a list": ({"attributions": [{"saliency": {}}, PATH]}, "attributions[1].integrated_gradients.path.n_steps"),
    "in a map": ({"attributions": [RULES]}, "attributions[0].lrp.rules.co.nv.alpha_one_beta_zero"),
}


@pytest.mark.parametrize("what", TWICE)
def test_a_field_comes_once_by_either_name(what: str) -> None:
    """Protobuf's own JSON reader takes the last."""
    sent, field = TWICE[what]
    with pytest.raises(ca.InvalidArgument) as failure:
        binary_of(InspectRequest, json.dumps(sent).encode())
    assert (failure.value.reason, failure.value.field) == (Reason.INVALID_VALUE, field)


def test_names_in_a_map_are_no_fields() -> None:
    """Two inputs may differ as the names of a field do."""
    tensor = {"dataType": 1, "shape": [0]}
    sent = {"tensors": {"byName": {"inputGradients": tensor, "input_gradients": tensor}}, "input_gradients": {}}
    message = InspectRequest.FromString(binary_of(InspectRequest, json.dumps(sent).encode()))
    assert set(message.tensors.by_name) == {"inputGradients", "input_gradients"}
    assert message.HasField("input_gradients")


OTHERS: list[Any] = [
    *({"tensors": 3}, {"tensors": [3]}, {"tensors": "byName"}, {"tensors": {"byName": [3]}}),
    *({"tensors": {"byName": {"a": 3}}}, {"captures": {"module": "a"}}, {"captures": [3]}, {"captures": "ab"}),
    {"attributions": [{"integratedGradients": {"path": {"quadrature": "\ud800"}}}]},
]


@pytest.mark.parametrize("sent", OTHERS)
def test_a_value_of_another_kind_is_refused(sent: Any) -> None:
    with pytest.raises(ca.InvalidArgument):
        binary_of(InspectRequest, json.dumps(sent).encode())


TOO_LARGE = {
    '{"instances": [[1, 2], [1e400, 3]]}': "instances[1][0]",
    '{"instances": [{"a": 1, "b": [0, -1e309]}]}': "instances[0].b[1]",
    '{"instances": [[Infinity, 1e400]]}': "instances[0][1]",
    '{"options": {"n_steps": 1E+999}}': "options.n_steps",
    '{"x": %s.5}' % ("9" * 400): "x",
    '{"x": %se99}' % ("9" * 210): "x",
    '{"x": 1E0309}': "x",
}


@pytest.mark.parametrize("text", TOO_LARGE)
def test_a_number_that_is_too_large_is_refused_with_its_place(text: str) -> None:
    """Python makes an infinite one of it."""
    with pytest.raises(ca.InvalidArgument, match="too large") as failure:
        mapping_in(text.encode())
    assert (failure.value.reason, failure.value.field) == (Reason.INVALID_VALUE, TOO_LARGE[text])


def test_a_number_that_is_called_infinite_is_infinite() -> None:
    """Python, and others, write it by that name, and NaN."""
    assert read_json('[Infinity, {"a": -Infinity}, 1e308, "1e400"]') == [math.inf, {"a": -math.inf}, 1e308, "1e400"]
    assert math.isnan(read_json("NaN"))


@pytest.mark.parametrize("text", ["1e400", "[[1e400]]", f"{'[' * 90}1e400{']' * 90}"])
def test_a_number_that_is_too_large_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        read_json(text)


def test_a_list_of_a_million_elements_is_not_written_out() -> None:
    """An error shows its first elements, and so it does those of a mapping, in their order."""
    many, written = [Written()] * 1_000_000, Written.count
    for values in (many, {"z": many, "a": 1}, dict.fromkeys(range(1_000_000), Written())):
        with pytest.raises(ca.InvalidArgument, match="not a choice"):
            choice({"sum": 1, "mean": 2}, values)
    assert Written.count - written < 100
    for value in ([0, 1, 2, 3, 4, 5, 6, "bad"], {"kind": "KernelShap", "n_samples": [5, {"a": 1}], "b": (1,)}, "a"):
        assert brief(value) == repr(value)
    assert len(brief("a" * 1000)) == 80


class Written:
    """Counts how often one is written."""

    count = 0

    def __repr__(self) -> str:
        Written.count += 1
        return "0"


@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_the_most_levels_may_be_beside_others(depth: int, fits: bool) -> None:
    """Lists beside one another are no deeper."""
    text = f"[{'[' * (depth - 1)}1{']' * (depth - 1)}{', []' * MAX_DEPTH}]"
    if fits:
        assert read_json(text)[1:] == [[]] * MAX_DEPTH
        return
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(text)
