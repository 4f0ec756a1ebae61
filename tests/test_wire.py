"""The wire: what goes in comes out, what is not served is refused by name, and no bytes break the decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import requests
from cutaway.errors import InvalidArgument, Reason
from cutaway.requests import Attribution, InspectRequest, Point
from cutaway.results import CapturedCall, InspectResult, ModelDetail, ModuleCapture
from cutaway.tensors import DTYPES, Array, dtype_name
from cutaway.v1 import inspection_pb2, model_pb2, tensor_pb2
from cutaway.wire import arrays
from cutaway.wire import models as wire_models
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results
from cutaway.wire.methods import CODECS
from tests.contract import refusal
from tests.wire_values import answers, attributions, canonical, details, questions, tensors

few = settings(deadline=None, max_examples=50)
many = settings(deadline=None, max_examples=300)


def sent(question: InspectRequest) -> bytes:
    return wire_requests.encode(question).SerializeToString()


@few
@given(questions)
def test_request_survives_the_wire(question: InspectRequest) -> None:
    """Whatever a question holds, in every field, is what the worker reads."""
    assert _unordered(wire_requests.decode(sent(question))) == _unordered(question)


def _unordered(question: InspectRequest) -> Any:
    """Inputs and baselines go by name: their order is lost, and says nothing."""
    asked = [
        dataclasses.replace(each, baselines=_sorted(each.baselines))
        if isinstance(each, requests.IntegratedGradients)
        else each
        for each in question.attributions
    ]
    return canonical(dataclasses.replace(question, tensors=_sorted(question.tensors), attributions=tuple(asked)))


def _sorted(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(mapping.items()))


@few
@given(answers)
def test_result_survives_the_wire(answer: InspectResult) -> None:
    """Whatever the worker found is what the client reads, in the same order, every number to its last bit."""
    data = wire_results.encode(answer).SerializeToString()
    assert canonical(wire_results.decode(inspection_pb2.InspectResponse.FromString(data))) == canonical(answer)


@few
@given(details)
def test_model_detail_survives_the_wire(detail: ModelDetail) -> None:
    """What the server says of a model is what the client reads."""
    data = wire_models.encode(detail).SerializeToString()
    assert canonical(wire_models.decode(model_pb2.ModelDetail.FromString(data))) == canonical(detail)


@many
@given(tensors())
def test_array_survives_the_wire(array: Array) -> None:
    """An array of any data type, shape, layout and byte order arrives with the same elements, bit for bit."""
    message = arrays.encode(array)
    received = arrays.decode(tensor_pb2.Tensor.FromString(message.SerializeToString()))
    assert (received.dtype, received.shape) == (DTYPES[dtype_name(array)], array.shape)
    assert received.tobytes() == np.ascontiguousarray(array).astype(received.dtype).tobytes()


def test_elements_travel_row_major_and_little_endian() -> None:
    """The bytes are those that the contract describes to a client in another language."""
    columns_first = np.asfortranarray(np.array([[1, 2], [3, 4]], ">i2"))
    message = arrays.encode(columns_first)
    assert message.data == bytes([1, 0, 2, 0, 3, 0, 4, 0])
    assert (message.data_type, list(message.shape)) == (tensor_pb2.DATA_TYPE_INT16, [2, 2])


def test_calls_keep_their_places() -> None:
    """A call that showed nothing at a point, or nothing at all, does not move the calls after it."""
    one = {"": np.ones(1)}
    seen: tuple[dict[Point, dict[str, Array]], ...] = (
        {Point.INPUT: one},
        {},
        {Point.GRAD_OUTPUT: one},
        {Point.INPUT: one, Point.GRAD_OUTPUT: one},
        {},
    )
    answer = InspectResult({}, captures={"m": ModuleCapture(tuple(CapturedCall(leaves) for leaves in seen))})
    received = wire_results.decode(wire_results.encode(answer))
    assert [list(call.leaves) for call in received.captures["m"].calls] == [list(leaves) for leaves in seen]


def test_every_method_travels() -> None:
    """Every attribution that Python can ask for has a way over the wire."""

    def leaves(kind: type[Attribution]) -> Iterator[type[Attribution]]:
        below = kind.__subclasses__()
        yield from (leaf for each in below for leaf in leaves(each)) if below else [kind]

    assert set(leaves(Attribution)) == set(CODECS)


@many
@given(attributions)
def test_method_keeps_its_parameters(attribution: Attribution) -> None:
    """Each method arrives with its own parameters, baselines and target."""
    question = InspectRequest("m", attributions=(attribution,))
    assert _unordered(wire_requests.decode(sent(question))) == _unordered(question)


# Values that no field may hold.


def asked(**fields: Any) -> inspection_pb2.InspectRequest:
    """A request that is in order, but for ``fields``."""
    whole: dict[str, Any] = {"model": "m", "tensors": {"by_name": {"x": {"data_type": 3, "data": bytes(4)}}}}
    return inspection_pb2.InspectRequest(**(whole | fields))


WRONG: dict[str, tuple[inspection_pb2.InspectRequest, Reason, str, str]] = {
    "no model": (asked(model=""), Reason.INVALID_VALUE, "model", "name the model"),
    "no input": (
        inspection_pb2.InspectRequest(model="m"),
        Reason.INPUT_MISSING,
        "tensors",
        "send tensors by name, or raw bytes",
    ),
    "no example": (
        asked(tensors=None, raw={}),
        Reason.INPUT_EMPTY,
        "raw.examples",
        "raw holds no example; send at least one",
    ),
    "no class": (
        asked(target={"class_index": {}}),
        Reason.TARGET_MISMATCH,
        "target.class_index",
        "no class index; send one for all, or one an example",
    ),
    "no module": (
        asked(captures=[{"module": "m"}, {}]),
        Reason.INVALID_VALUE,
        "captures[1].module",
        "name a module, or give a glob",
    ),
    "unset point": (
        asked(captures=[{"module": "m", "points": [1, 0]}]),
        Reason.INVALID_VALUE,
        "captures[0].points[1]",
        "0 is none of HOOK_POINT_INPUT, HOOK_POINT_OUTPUT, HOOK_POINT_GRAD_INPUT, HOOK_POINT_GRAD_OUTPUT",
    ),
    "point twice": (
        asked(captures=[{"module": "m", "points": [2, 1, 2]}]),
        Reason.INVALID_VALUE,
        "captures[0].points[2]",
        "OUTPUT is there already; name each point once",
    ),
    "no method": (asked(attributions=[{}]), Reason.INVALID_VALUE, "attributions[0].method", "name a method"),
    "no layer": (
        asked(attributions=[{"layer_grad_cam": {}}]),
        Reason.INVALID_VALUE,
        "attributions[0].layer_grad_cam.layer",
        "name the layer to explain",
    ),
    "no baseline": (
        asked(attributions=[{"integrated_gradients": {"path": {"baselines": {"by_input": {"x": {}}}}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].integrated_gradients.path.baselines.by_input.x",
        "a baseline needs a scalar or a tensor",
    ),
    "no class of an attribution": (
        asked(attributions=[{"saliency": {}}, {"saliency": {}, "target": {"class_index": {}}}]),
        Reason.TARGET_MISMATCH,
        "attributions[1].target.class_index",
        "no class index; send one for all, or one an example",
    ),
    "negative tolerance": (
        asked(check={"relative_tolerance": -1e-9}),
        Reason.INVALID_VALUE,
        "check.relative_tolerance",
        "a tolerance is a finite number from 0 up",
    ),
    "tolerance of NaN": (
        asked(check={"relative_tolerance": float("nan")}),
        Reason.INVALID_VALUE,
        "check.relative_tolerance",
        "a tolerance is a finite number from 0 up",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_value_is_refused_with_what_would_be_right(wrong: str) -> None:
    """The error names the field at fault and says, in words, what to send instead."""
    message, reason, field, text = WRONG[wrong]
    failure = refusal(message)
    assert isinstance(failure, InvalidArgument)
    assert (failure.reason, failure.field, failure.message) == (reason, field, text)


BYTE, FLOAT, BOOL = tensor_pb2.DATA_TYPE_UINT8, tensor_pb2.DATA_TYPE_FLOAT32, tensor_pb2.DATA_TYPE_BOOL
KNOWN = ", ".join(value.name for value in tensor_pb2.DataType.DESCRIPTOR.values if value.number)
HOSTILE: dict[str, tuple[int, list[int], bytes, Reason, str, str]] = {
    # data type, shape, data; reason, field, text
    "too few bytes": (FLOAT, [2, 3], bytes(23), Reason.TENSOR_SIZE, "data", "float32[2, 3] needs 24 bytes, got 23"),
    "too many bytes": (FLOAT, [2, 3], bytes(25), Reason.TENSOR_SIZE, "data", "float32[2, 3] needs 24 bytes, got 25"),
    "no bytes": (FLOAT, [], b"", Reason.TENSOR_SIZE, "data", "float32[] needs 4 bytes, got 0"),
    "bytes for nothing": (FLOAT, [0], bytes(4), Reason.TENSOR_SIZE, "data", "float32[0] needs 0 bytes, got 4"),
    "negative size": (BYTE, [-1], bytes(1), Reason.INPUT_SHAPE, "shape", "[-1] has a negative size"),
    "two negative sizes": (BYTE, [-2, -2], bytes(4), Reason.INPUT_SHAPE, "shape", "[-2, -2] has a negative size"),
    "least size": (BYTE, [-(2**63)], b"", Reason.INPUT_SHAPE, "shape", "has a negative size"),
    "overflow to nothing": (FLOAT, [2**62, 4], b"", Reason.INPUT_SHAPE, "shape", "has more than"),
    "overflow to one": (BYTE, [2**63 - 1] * 2, bytes(1), Reason.INPUT_SHAPE, "shape", "has more than"),
    "overflow hidden by nothing": (BYTE, [0, 2**62, 2**62], b"", Reason.INPUT_SHAPE, "shape", ""),
    "huge axis beside nothing": (FLOAT, [2**62, 0], b"", Reason.INPUT_SHAPE, "shape", ""),
    "too many axes": (BYTE, [1] * 33, bytes(1), Reason.INPUT_SHAPE, "shape", "33 axes; at most 32 are allowed"),
    "far too many axes": (BYTE, [1] * 10**5, bytes(1), Reason.INPUT_SHAPE, "shape", "100000 axes; at most 32"),
    "boolean of 2": (BOOL, [3], b"\0\1\2", Reason.INPUT_DTYPE, "data", "a boolean is one byte, 0 or 1"),
    "boolean of 255": (BOOL, [], b"\xff", Reason.INPUT_DTYPE, "data", "a boolean is one byte, 0 or 1"),
    "no data type": (0, [1], bytes(1), Reason.INPUT_DTYPE, "data_type", f"data type 0 is none of {KNOWN}"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_tensor_is_refused(hostile: str) -> None:
    """A tensor that lies about itself is refused, as an input and as a baseline, before any memory is taken for it."""
    data_type, shape, data, reason, field, text = HOSTILE[hostile]
    tensor = {"data_type": data_type, "shape": shape, "data": data}
    baselines = {"path": {"baselines": {"by_input": {"x": {"tensor": tensor}}}}}
    for message, where in (
        (asked(tensors={"by_name": {"image": tensor}}), "tensors.by_name.image"),
        (
            asked(attributions=[{"integrated_gradients": baselines}]),
            "attributions[0].integrated_gradients.path.baselines.by_input.x.tensor",
        ),
    ):
        failure = refusal(message)
        assert isinstance(failure, InvalidArgument)
        assert (failure.reason, failure.field) == (reason, f"{where}.{field}")
        assert text in failure.message


def test_no_more_than_32_axes_is_taken() -> None:
    """The deepest tensor that is allowed arrives."""
    received = arrays.decode(tensor_pb2.Tensor(data_type=BYTE, shape=[1] * 32, data=b"\7"))
    assert (received.shape, received.item()) == ((1,) * 32, 7)


@pytest.mark.parametrize("array", [np.zeros(1, "c8"), np.array(["a"]), np.array([None]), np.zeros(1, "u4")])
def test_array_that_the_contract_lacks_is_refused_by_the_client(array: Array) -> None:
    """Complex numbers, strings, objects and further integers are refused before they are sent, with what can be."""
    with pytest.raises(InvalidArgument) as caught:
        wire_requests.encode(InspectRequest("m", {"x": array}))
    assert (caught.value.reason, caught.value.field) == (Reason.INPUT_DTYPE, "tensors.by_name.x")
    assert caught.value.message == f"{array.dtype.name} cannot be sent; the contract has {', '.join(DTYPES)}"


# Garbage.


@many
@given(st.binary(max_size=200))
def test_garbage_never_breaks_the_decoder(data: bytes) -> None:
    """Whatever bytes arrive, the answer is a request or an error of ours."""
    failure = refusal(data)
    assert failure is None or failure.message


@many
@given(questions.map(sent), st.data())
def test_damage_never_breaks_the_decoder(data: bytes, draw: st.DataObject) -> None:
    """Nor do bytes that were a request, before some of them were lost, changed or added."""
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 8)))
    failure = refusal(data[:start] + draw.draw(st.binary(max_size=8)) + data[end:])
    assert failure is None or failure.message


def test_bytes_of_something_else_are_told_from_a_request() -> None:
    """Bytes that are no message at all are malformed; the error says what they should be."""
    with pytest.raises(InvalidArgument) as caught:
        wire_requests.decode(b"\xff" * 7)
    assert caught.value.reason == Reason.MALFORMED_REQUEST
    assert caught.value.message == "the 7 bytes are not a cutaway.v1.InspectRequest"
