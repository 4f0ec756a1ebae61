"""The wire: what goes in comes out, what is not served is refused by name, and no bytes break the decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.client.request_builder import build_request
from cutaway.client.transport import GatewayTransport, TorchServeTransport
from cutaway.contract import requests
from cutaway.contract.errors import InvalidArgument, Reason
from cutaway.contract.requests import Attribution, Capture, Edit, InspectRequest, Point, Reduction, Target, field_name
from cutaway.contract.results import CapturedCall, InspectResult, ModelDetail, ModuleCapture
from cutaway.contract.tensors import DTYPES, Array, dtype_name
from cutaway.contract.wire import models as wire_models
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire import scalars
from cutaway.contract.wire.methods import METHODS
from cutaway.contract.wire.oneofs import EDIT_KINDS, REDUCTIONS, TARGETS
from cutaway.v1 import capture_pb2, inspection_pb2, model_pb2, tensor_pb2, worker_pb2
from tests.support.contract_fields import asked, refusal
from tests.support.wire_strategies import (
    answers,
    attributions,
    canonical,
    captures,
    details,
    edits,
    questions,
    targets,
    tensor_message,
    tensors,
)

few = settings(deadline=None, max_examples=50)
many = settings(deadline=None, max_examples=100)


def sent(question: InspectRequest) -> bytes:
    return wire_requests.encode(question).SerializeToString()


@few
@given(questions)
def test_request_survives_the_wire(question: InspectRequest) -> None:
    """Whatever a question holds, in every field, is what the worker reads; also if inputs are not copied into it."""
    assert _unordered(wire_requests.decode(sent(question))) == _unordered(question)
    assert _unordered(wire_requests.decode(wire_requests.serialize(question))) == _unordered(question)


def _unordered(question: InspectRequest) -> Any:
    """Inputs, baselines, masks and windows go by name: their order is lost, and says nothing."""
    asked = [dataclasses.replace(each, **_sorted_fields(each)) for each in question.attributions]
    inputs: Any = {"tensors": _sorted(question.tensors), "feature_names": _sorted(question.feature_names)}
    inputs["attacks"] = tuple(dataclasses.replace(each, **_sorted_fields(each)) for each in question.attacks)
    if (tested := question.concepts) is not None:
        concepts = {name: _sorted_examples(each) for name, each in _sorted(tested.concepts).items()}
        sets = tuple(map(_sorted_examples, tested.random))
        inputs["concepts"] = dataclasses.replace(tested, concepts=concepts, random=sets)
    if (sought := question.influence) is not None:
        inputs["influence"] = dataclasses.replace(sought, training=_sorted_examples(sought.training))
    if (wanted := question.counterfactual) is not None:
        inputs["counterfactual"] = dataclasses.replace(wanted, **_sorted_fields(wanted))
    return canonical(dataclasses.replace(question, **inputs, attributions=tuple(asked)))


def _sorted_fields(value: Any) -> dict[str, Any]:
    mappings = {name: _sorted(given) for name, given in vars(value).items() if isinstance(given, Mapping)}
    metrics = [dataclasses.replace(each, **_sorted_fields(each)) for each in getattr(value, "metrics", ())]
    return mappings | ({"metrics": tuple(metrics)} if metrics else {})


def _sorted_examples(examples: requests.ConceptExamples) -> requests.ConceptExamples:
    return dataclasses.replace(examples, tensors=_sorted(examples.tensors))


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
    message = tensor_message(array)
    received = scalars.read(tensor_pb2.Tensor.FromString(message.SerializeToString()))
    assert (received.dtype, received.shape) == (DTYPES[dtype_name(array)], array.shape)
    assert received.tobytes() == np.ascontiguousarray(array).astype(received.dtype).tobytes()


def test_elements_travel_row_major_and_little_endian() -> None:
    """The bytes are those that the contract describes to a client in another language."""
    columns_first = np.asfortranarray(np.array([[1, 2], [3, 4]], ">i2"))
    message = tensor_message(columns_first)
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


@pytest.mark.parametrize(
    ("base", "kinds"),
    [(Attribution, METHODS.kinds), (Edit, EDIT_KINDS.kinds), (Target, TARGETS.kinds), (Reduction, REDUCTIONS.kinds)],
)
def test_everything_travels(base: type, kinds: Mapping[str, type]) -> None:
    """Everything that Python can ask for has a way over the wire, in a field of its own."""

    def leaves(kind: type) -> Iterator[type]:
        narrower: list[type] = kind.__subclasses__()
        below = [each for each in narrower if each.__module__.startswith("cutaway.contract.requests")]
        yield from (leaf for each in below for leaf in leaves(each)) if below else [kind]

    assert set(leaves(base)) == set(kinds.values())
    assert len(set(kinds.values())) == len(kinds)


def test_a_method_goes_by_one_name() -> None:
    """The engine's errors and the contract name a method's field alike."""
    for name, kind in METHODS.kinds.items():
        assert name == field_name(kind)


@many
@given(attributions)
def test_method_keeps_its_parameters(attribution: Attribution) -> None:
    """Each method arrives with its own parameters, baselines and target."""
    question = InspectRequest("m", attributions=(attribution,))
    assert _unordered(wire_requests.decode(sent(question))) == _unordered(question)


def test_a_deviation_of_minus_nought_arrives() -> None:
    """What hypothesis came upon once: -0.0 is no number that was never set."""
    asked = requests.GradientShap(baselines={}, stdev=-0.0)
    received = wire_requests.decode(sent(InspectRequest("m", attributions=(asked,)))).attributions[0]
    assert canonical(received) == canonical(asked)


@many
@given(edits)
def test_edit_keeps_its_parameters(edit: Edit) -> None:
    """Each edit arrives with its place, its part of the tensor and its own parameters."""
    assert canonical(wire_requests.decode(sent(InspectRequest("m", edits=(edit,)))).edits[0]) == canonical(edit)


@many
@given(captures)
def test_capture_keeps_its_parameters(capture: Capture) -> None:
    """Each capture arrives with its place, its points, its part of the tensor and its reduction."""
    received = wire_requests.decode(sent(InspectRequest("m", captures=(capture,)))).captures[0]
    assert canonical(received) == canonical(capture)


@many
@given(targets)
def test_target_keeps_its_parameters(target: Target) -> None:
    """Each target arrives with its output and its own parameters."""
    assert canonical(wire_requests.decode(sent(InspectRequest("m", target=target))).target) == canonical(target)


def test_a_message_without_the_name_of_an_input_means_input_ids() -> None:
    """As the contract says; clients of other languages leave it out."""
    message = wire_requests.encode(InspectRequest("m", {"input_ids": np.zeros((1, 2), np.int64)}))
    message.counterfactual.tokens.remove = True
    asked_for = wire_requests.decode(message.SerializeToString()).counterfactual
    assert asked_for is not None
    assert asked_for.tokens == requests.TokenChanges(remove=True)


def test_condition_is_part_of_the_question() -> None:
    """Which examples are explained travels with what the client is asked; none given, all are."""
    condition = requests.ExplainIf(probability_at_most=0.5, classes=(3, 5))
    for bounds in (condition, None):
        made = build_request("m", {"x": np.ones(1)}, attributions=[requests.Saliency()], explain_if=bounds)
        assert wire_requests.decode(sent(made)).explain_if == bounds


@pytest.mark.parametrize("addend", [2, 2.0, np.float32(2), np.float64(2), np.int8(2)])
def test_number_of_any_kind_is_added_as_one(addend: Any) -> None:
    """A number of Python's or numpy's travels as a double; an array with no axes is a tensor."""
    for value, kind in ((addend, "scalar"), (np.asarray(addend), "tensor")):
        message = wire_requests.encode(InspectRequest("m", edits=(requests.Add("a", addend=value),)))
        assert message.edits[0].add.WhichOneof("addend") == kind
    assert wire_requests.decode(sent(InspectRequest("m", edits=(requests.Add("a", addend=addend),)))).edits == (
        requests.Add("a", addend=2.0),
    )


def test_top_k_of_one_is_told_from_no_top_k() -> None:
    """[batch, 1] comes back as [batch, 1] and [batch] as [batch]."""
    for shape in ((3,), (3, 1), (1, 3), (3, 2)):
        values, classes = np.ones(shape), np.zeros(shape, np.int64)
        received = wire_results.decode(wire_results.encode(InspectResult({}, targets=classes, target_values=values)))
        assert received.targets is not None
        assert received.target_values is not None
        assert received.targets.shape == received.target_values.shape == shape


def test_targets_that_are_no_grid_are_refused() -> None:
    """A reply whose number of targets is no multiple of k cannot be read; it is not read wrongly."""
    predictions = inspection_pb2.Predictions(target_values=[1.0, 2.0, 3.0], targets_per_example=2)
    message = inspection_pb2.InspectResponse(predictions=predictions)
    with pytest.raises(InvalidArgument, match="3 targets, 2 an example"):
        wire_results.decode(message)


def test_question_about_a_model_survives_the_wire() -> None:
    """Which details are asked for reaches the worker, through the gateway and without it."""
    for chosen in ((True, False, False), (False, True, False), (False, False, True)):
        front = GatewayTransport().get_model("m/versions/2.0", *chosen).payload
        direct = worker_pb2.TorchServePredictionsRequest.FromString(
            TorchServeTransport().get_model("m/versions/2.0", *chosen).payload
        )
        assert (direct.model_name, direct.model_version) == ("m", "2.0")
        for data in (front, direct.input["describe"]):
            received = wire_models.decode_model_request(data)
            assert received.model == "m/versions/2.0"
            assert tuple(getattr(received, name) for name in wire_models.DETAILS) == chosen
    assert not wire_models.decode_model_request(b"").operators


@pytest.mark.parametrize(
    ("data", "reason"), [(b"\xff\xff", Reason.MALFORMED_REQUEST), (b"\xf8\x07\x01", Reason.UNKNOWN_FIELD)]
)
def test_bad_question_about_a_model_is_refused(data: bytes, reason: Reason) -> None:
    """Bytes that are no question, or ask for what this server does not know, are refused."""
    with pytest.raises(InvalidArgument) as caught:
        wire_models.decode_model_request(data)
    assert caught.value.reason == reason


# Values that no field may hold.


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
    "nothing captured": (
        asked(captures=[{"module": "m"}, {}]),
        Reason.INVALID_VALUE,
        "captures[1].where",
        "name a module, an operator or a parameter",
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
        "output is there already; name each once",
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
        "nothing; this method takes a scalar, a tensor or a token id",
    ),
    "no class of an attribution": (
        asked(attributions=[{"saliency": {}}, {"saliency": {}, "target": {"class_index": {}}}]),
        Reason.TARGET_MISMATCH,
        "attributions[1].target.class_index",
        "no class index; send one for all, or one an example",
    ),
    "distribution for a path": (
        asked(
            attributions=[{"integrated_gradients": {"path": {"baselines": {"by_input": {"x": {"distribution": {}}}}}}}]
        ),
        Reason.INVALID_VALUE,
        "attributions[0].integrated_gradients.path.baselines.by_input.x.distribution",
        "distribution; this method takes a scalar, a tensor or a token id",
    ),
    "number for a distribution": (
        asked(attributions=[{"deep_lift_shap": {"baselines": {"by_input": {"x": {"scalar": 0.0}}}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].deep_lift_shap.baselines.by_input.x.scalar",
        "scalar; this method takes a distribution",
    ),
    "no distribution": (
        asked(attributions=[{"gradient_shap": {"baselines": {"by_input": {"x": {}}}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].gradient_shap.baselines.by_input.x",
        "nothing; this method takes a distribution",
    ),
    "tensor for a unit": (
        asked(attributions=[{"layer_feature_ablation": {"layer": "m", "baseline": {"tensor": {}}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].layer_feature_ablation.baseline.tensor",
        "the baseline of a layer's units is one scalar",
    ),
    "nothing for a unit": (
        asked(attributions=[{"layer_feature_ablation": {"layer": "m", "baseline": {}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].layer_feature_ablation.baseline",
        "the baseline of a layer's units is one scalar",
    ),
    "no neuron": (
        asked(attributions=[{"neuron_gradient": {}}]),
        Reason.INVALID_VALUE,
        "attributions[0].neuron_gradient.neuron.module",
        "name the module",
    ),
    "no rule": (
        asked(attributions=[{"lrp": {"rules": {"conv.0": {}}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].lrp.rules.conv.0.kind",
        "say which rule: epsilon, gamma, alpha_one_beta_zero or identity",
    ),
    "negative bound of the delta": (
        asked(attributions=[{"layer_conductance": {"layer": "m", "path": {"max_delta": -1e-3}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].layer_conductance.path.max_delta",
        "-0.001; a bound is from 0 up",
    ),
    "bound of the delta of NaN": (
        asked(attributions=[{"integrated_gradients": {"path": {"max_delta": float("nan")}}}]),
        Reason.INVALID_VALUE,
        "attributions[0].integrated_gradients.path.max_delta",
        "nan; a bound is from 0 up",
    ),
    "negative noise": (
        asked(attributions=[{"saliency": {}, "noise_tunnel": {"stdev": -1.0}}]),
        Reason.INVALID_VALUE,
        "attributions[0].noise_tunnel.stdev",
        "-1.0; a finite number from 0 up",
    ),
    "infinite noise": (
        asked(attributions=[{"saliency": {}, "noise_tunnel": {"stdev": float("inf")}}]),
        Reason.INVALID_VALUE,
        "attributions[0].noise_tunnel.stdev",
        "inf; a finite number from 0 up",
    ),
    "no metric": (
        asked(attributions=[{"saliency": {}}, {"saliency": {}, "metrics": [{"infidelity": {}}, {}]}]),
        Reason.INVALID_VALUE,
        "attributions[1].metrics[1].metric",
        "say which metric, such as infidelity",
    ),
    "metric without a spread": (
        asked(attributions=[{"saliency": {}, "metrics": [{"sensitivity_max": {"radius": 0.0}}]}]),
        Reason.INVALID_VALUE,
        "attributions[0].metrics[0].sensitivity_max.radius",
        "0.0; a finite number above 0",
    ),
    "probability above 1": (
        asked(explain_if={"probability_at_least": 1.5}),
        Reason.INVALID_VALUE,
        "explain_if.probability_at_least",
        "1.5; a probability is from 0 to 1",
    ),
    "probability of NaN": (
        asked(explain_if={"probability_at_most": float("nan")}),
        Reason.INVALID_VALUE,
        "explain_if.probability_at_most",
        "nan; a probability is from 0 to 1",
    ),
    "negative tolerance": (
        asked(check={"relative_tolerance": -1e-9}),
        Reason.INVALID_VALUE,
        "check.relative_tolerance",
        "-1e-09; a tolerance is a finite number from 0 up",
    ),
    "tolerance of NaN": (
        asked(check={"relative_tolerance": float("nan")}),
        Reason.INVALID_VALUE,
        "check.relative_tolerance",
        "nan; a tolerance is a finite number from 0 up",
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
    """A tensor that lies about itself is refused, wherever it is sent, before any memory is taken for it."""
    data_type, shape, data, reason, field, text = HOSTILE[hostile]
    tensor = {"data_type": data_type, "shape": shape, "data": data}
    baselines = {"path": {"baselines": {"by_input": {"x": {"tensor": tensor}}}}}
    for message, where in (
        (asked(tensors={"by_name": {"image": tensor}}), "tensors.by_name.image"),
        (
            asked(attributions=[{"integrated_gradients": baselines}]),
            "attributions[0].integrated_gradients.path.baselines.by_input.x.tensor",
        ),
        (asked(edits=[{"module": "m", "point": 2, "add": {"tensor": tensor}}]), "edits[0].add.tensor"),
        (asked(edits=[{"module": "m", "point": 2, "replace": {"tensor": tensor}}]), "edits[0].replace.tensor"),
        (asked(target={"cotangent": {"tensor": tensor}}), "target.cotangent.tensor"),
        (asked(target={"mean_squared_error": {"values": tensor}}), "target.mean_squared_error.values"),
    ):
        failure = refusal(message)
        assert isinstance(failure, InvalidArgument)
        assert (failure.reason, failure.field) == (reason, f"{where}.{field}")
        assert text in failure.message


def test_no_more_than_32_axes_is_taken() -> None:
    """The deepest tensor that is allowed arrives."""
    received = scalars.read(tensor_pb2.Tensor(data_type=BYTE, shape=[1] * 32, data=b"\7"))
    assert (received.shape, received.item()) == ((1,) * 32, 7)


@pytest.mark.parametrize("array", [np.zeros(1, "c8"), np.array(["a"]), np.array([None]), np.zeros(1, "u4")])
def test_array_that_the_contract_lacks_is_refused_by_the_client(array: Array) -> None:
    """Complex numbers, strings, objects and further integers are refused before they are sent, with what can be."""
    with pytest.raises(InvalidArgument) as caught:
        wire_requests.encode(InspectRequest("m", {"x": array}))
    assert (caught.value.reason, caught.value.field) == (Reason.INPUT_DTYPE, "tensors.by_name.x")
    parts = "; send its real and imaginary parts, as torch.view_as_real has them" if array.dtype.kind == "c" else ""
    assert caught.value.message == f"{array.dtype.name} cannot be sent; the contract has {', '.join(DTYPES)}{parts}"


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


@few
@given(questions.filter(lambda question: question.tensors).map(sent), st.data())
def test_a_request_read_before_hides_no_damage(data: bytes, draw: st.DataObject) -> None:
    """After a request, one of as many bytes of which some differ is what it is to a server that read none before."""
    start = draw.draw(st.integers(0, len(data)))
    damaged = data[:start] + (other := draw.draw(st.binary(max_size=8))) + data[start + len(other) :]
    found = []
    for before in ((), (data, data)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire_requests, "_known", {})
            for each in before:
                refusal(each)
            failure = refusal(damaged)
            found.append(failure.message if failure else canonical(wire_requests.decode(damaged)))
    assert found[0] == found[1]


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_a_request_about_other_numbers_is_read_by_its_data_alone(
    monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """The second request is not parsed: everything but the numbers is the same object. Compressed ones are parsed."""
    monkeypatch.setattr(wire_requests, "_known", {})
    first, second = (
        inspection_pb2.InspectRequest(model="net", captures=[capture_pb2.CaptureRequest(module="fc")]) for _ in range(2)
    )
    arrays = [np.full((2, 40), number, np.float32) for number in (1, 2)]
    for message, array in zip((first, second), arrays):
        for name, numbers in {"image": array, "text": array.astype(np.int64)}.items():
            scalars.write(numbers, message.tensors.by_name[name], compression)
    one, other = (wire_requests.decode(message.SerializeToString(deterministic=True)) for message in (first, second))
    assert len(wire_requests._known) == (not compression)
    assert other.captures is one.captures
    assert [*other.tensors] == [*one.tensors]
    assert all((read == 2).all() for read in other.tensors.values())
    assert {name: read.dtype for name, read in other.tensors.items()} == {"image": np.float32, "text": np.int64}


def test_an_input_that_another_kind_replaced_is_none() -> None:
    """The last of ``tensors``, ``raw`` and ``tensors`` is what a request has, each time it is read."""
    asked = []
    for name in ("other", "image"):
        message = inspection_pb2.InspectRequest()
        scalars.write(np.ones((1, 2), np.float32), message.tensors.by_name[name])
        asked.append(message.SerializeToString())
    raw = inspection_pb2.InspectRequest(model="net")
    raw.raw.examples.add()
    data = asked[0] + raw.SerializeToString() + asked[1]
    for _ in range(2):
        assert [*wire_requests.decode(data).tensors] == ["image"]


def test_a_compressed_request_of_as_many_bytes_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, these 160 bytes are 160 bytes: the next request must not take them for the numbers themselves."""
    monkeypatch.setattr(wire_requests, "_known", {})
    numbers = np.arange(160, dtype=np.uint8) * np.uint8(97)
    packer = zstandard.ZstdCompressor(level=3)
    packed = {end: packer.compress(np.where(np.arange(160) < end, numbers, 0).tobytes()) for end in range(100, 160)}
    end, data = next((end, data) for end, data in packed.items() if len(data) == 160)
    message = inspection_pb2.InspectRequest(model="net")
    tensor = message.tensors.by_name["x"]
    tensor.data_type, tensor.compression, tensor.data = scalars.DATA_TYPES["uint8"], tensor_pb2.COMPRESSION_ZSTD, data
    tensor.shape.extend([1, 160])
    for _ in range(2):
        (read,) = wire_requests.decode(message.SerializeToString()).tensors.values()
        assert read[0, :end].tolist() == numbers[:end].tolist()


def test_bytes_of_something_else_are_told_from_a_request() -> None:
    """Bytes that are no message at all are malformed; the error says what they should be."""
    with pytest.raises(InvalidArgument) as caught:
        wire_requests.decode(b"\xff" * 7)
    assert caught.value.reason == Reason.MALFORMED_REQUEST
    assert caught.value.message == "the 7 bytes are not a cutaway.v1.InspectRequest"
