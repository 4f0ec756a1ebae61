"""Triton's own clients, by gRPC and by HTTP, in the process of a server: what they get is what ours gets."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as by_grpc
import tritonclient.http as by_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import cutaway as ca
from cutaway.contract.values import __version__
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.open_inference.grpc_service import UNSERVED
from cutaway.server.settings import Settings
from tests.integration.open_inference.doors import Door, connected, names, parameter
from tests.integration.open_inference.models import NUMBERS, Classes, Same, X

INSIDE = {
    "captures": [{"module": "act"}, {"module": "conv", "reduction": {"topK": {"k": 2}}}, {"parameter": "fc.bias"}],
    "inputGradients": {},
    "attributions": [
        {"integratedGradients": {}},
        {"integratedGradients": {"path": {"nSteps": 9}}},
        {"layerGradCam": {"layer": "conv"}},
    ],
    "options": {"seed": "3"},
}
"""The parameter `cutaway`; `ASKED` is the same for our client."""

ASKED: dict[str, Any] = {
    "captures": [ca.Capture("act"), ca.Capture("conv", reduce=ca.TopElements(2)), ca.Capture(parameter="fc.bias")],
    "input_gradients": True,
    "attributions": [ca.IntegratedGradients(), ca.IntegratedGradients(n_steps=9), ca.LayerGradCam(layer="conv")],
    "seed": 3,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = Settings(http_address="127.0.0.1:0", max_message_bytes=1 << 20)
    with serve({"classes": Classes(), "same": Same()}, settings=settings) as running:
        yield running


@pytest.fixture(params=[by_grpc, by_http], ids=["grpc", "http"])
def door(server: Served, request: pytest.FixtureRequest) -> Iterator[Door]:
    with connected(request.param, server) as door:
        yield door


@pytest.fixture
def ours(server: Served) -> Iterator[ca.Client]:
    with ca.Client(server.address) as client:
        yield client


def test_what_a_server_tells_of_itself(door: Door) -> None:
    more = {} if door.kind is by_http else {"as_json": True}
    assert door.client.is_server_live()
    assert door.client.is_server_ready()
    assert door.client.is_model_ready("classes")
    assert door.client.is_model_ready("classes", "1.0")
    told = door.client.get_server_metadata(**more)
    assert (told["name"], told["version"]) == ("cutaway", __version__)
    model = door.client.get_model_metadata("classes", **more)
    inputs = [(each["name"], each["datatype"], [*map(int, each["shape"])]) for each in model["inputs"]]
    outputs = [(each["name"], each["datatype"], [*map(int, each["shape"])]) for each in model["outputs"]]
    assert (model["name"], model["versions"], model["platform"]) == ("classes", ["1.0"], "pytorch_eager")
    assert inputs == [("image", "FP32", [-1, 1, 6, 6])]
    assert outputs == [("output", "FP32", [-1, 3])]


def test_a_model_that_is_not_there(door: Door) -> None:
    assert "no model 'nobody'" in door.refused({"image": X}, model="nobody")
    if door.kind is by_http:
        assert not door.client.is_model_ready("nobody")
    else:
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*no model 'nobody'"):
            door.client.is_model_ready("nobody")
    with pytest.raises(InferenceServerException, match="not in 7"):
        door.client.get_model_metadata("classes", "7")


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_data_type_there_and_back(door: Door, datatype: str) -> None:
    """Bit for bit, as bytes and, by HTTP, as numbers in JSON."""
    numbers = NUMBERS[datatype]
    ways = [{}] if door.kind is by_grpc else [{}, *([{"binary_data": False}] if datatype != "FP16" else [])]
    for how in ways:
        asked = [door.kind.InferRequestedOutput("output", **how)]
        reply = door.client.infer("same", [door.input("input", numbers, datatype, **how)], outputs=asked)
        returned = reply.as_numpy("output")
        assert (returned.dtype, returned.tobytes()) == (numbers.dtype, numbers.tobytes())


def test_internals_are_those_that_our_client_gets(door: Door, ours: ca.Client) -> None:
    expected = ours.inspect("classes", X, **ASKED)
    reply = door.infer({"image": X}, parameters={"cutaway": json.dumps(INSIDE)})
    act, conv = expected.captures["act"].calls, expected.captures["conv"].calls[0]
    first, second, cam = expected.attributions
    arrays = {
        "output": expected.predictions["output"],
        "capture:act@output": act[0].output,
        "capture:act@output#1": act[1].output,
        "capture:conv@output": conv.output,
        "positions:conv@output": conv.positions[ca.Point.OUTPUT][""],
        "gradient:image": expected.input_gradients["image"],
        "parameter_gradient:fc.bias": expected.parameter_gradients["fc.bias"],
        "attribution:integrated_gradients:image": first.values["image"],
        "attribution:integrated_gradients#1:image": second.values["image"],
        "attribution:layer_grad_cam:conv": cam.values["conv"],
    }
    assert names(reply) == [*arrays]
    for name, array in arrays.items():
        returned = reply.as_numpy(name)
        assert (returned.dtype, returned.shape, returned.tobytes()) == (array.dtype, array.shape, array.tobytes())
    verdicts = {name: parameter(reply.get_output(name), "verdict") for name in arrays}
    assert {name for name, verdict in verdicts.items() if verdict} == {name for name in arrays if "attribution" in name}
    assert verdicts["attribution:layer_grad_cam:conv"] == str(cam.verdict)
    rest = json.loads(parameter(reply.get_response(), "cutaway"))
    assert [each["method"] for each in rest["attributions"]] == ["IntegratedGradients"] * 2 + ["LayerGradCam"]
    assert [each["label"] for each in rest["predictions"]["classes"]] == [each.label for each in expected.classes]
    assert first.convergence_delta is not None
    assert rest["attributions"][0]["convergenceDelta"] == first.convergence_delta.tolist()
    assert not {"captures", "inputGradients", "parameterGradients"} & {*rest}
    assert not any("values" in each for each in rest["attributions"])


def test_the_unedited_prediction(door: Door, ours: ca.Client) -> None:
    expected = ours.inspect("classes", X, edits=[ca.Zero("conv")], compare=True)
    asked = {"edits": [{"module": "conv", "point": "HOOK_POINT_OUTPUT", "zero": {}}], "compare": True}
    reply = door.infer({"image": X}, parameters={"cutaway": json.dumps(asked)})
    assert names(reply) == ["output", "unedited:output"]
    assert np.array_equal(reply.as_numpy("unedited:output"), expected.unedited["output"])


def test_outputs_by_name(door: Door) -> None:
    """In the order of the request, and no others; one that there is not is an error that lists those there are."""
    asked = {"cutaway": json.dumps({"captures": [{"module": "conv"}, {"module": "fc"}]})}
    reply = door.infer({"image": X}, outputs=["capture:fc@output", "output"], parameters=asked)
    assert names(reply) == ["capture:fc@output", "output"]
    told = door.refused({"image": X}, outputs=["output", "capture:fc@input"], parameters=asked)
    assert "outputs[1].name: the reply has no 'capture:fc@input', but output, capture:conv@output" in told


def test_examples_for_the_adapter(door: Door, ours: ca.Client) -> None:
    texts = [" ".join(map(str, row.ravel())).encode() for row in X]
    expected = ours.inspect("classes", [ca.Raw(text) for text in texts]).predictions["output"]
    sent = np.array(texts, object)
    assert np.array_equal(door.infer({"examples": sent}).as_numpy("output"), expected)
    assert "this model takes tensors" in door.refused({"input": sent}, model="same")
    assert "the only input" in door.refused({"examples": sent, "image": X})


def test_each_output_as_bytes_or_as_numbers(server: Served) -> None:
    """By HTTP, as the request says of all outputs, or of one."""
    with connected(by_http, server) as door:
        sent = [door.input("image", X)]
        every = door.client.infer("classes", sent).get_output("output")
        some = [
            by_http.InferRequestedOutput(name, binary) for name, binary in (("output", False), ("gradient:image", True))
        ]
        inside = {"cutaway": '{"inputGradients": {}}'}
        numbers, raw = door.client.infer("classes", sent, outputs=some, parameters=inside).get_response()["outputs"]
    assert ("data" in every, every["parameters"]) == (False, {"binary_data_size": 24})
    assert (len(numbers["data"]), "parameters" in numbers) == (6, False)
    assert ("data" in raw, raw["parameters"]) == (False, {"binary_data_size": X.nbytes})


def test_the_id_comes_back(door: Door) -> None:
    response = door.infer({"image": X}, request_id="seven").get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "seven"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"inputs": {"image": X.astype(np.int32)}}, "image"),
    "name": ({"inputs": {"picture": X}}, "picture"),
    "no json": ({"inputs": {"image": X}, "parameters": {"cutaway": "{"}}, "parameters.cutaway: the request is no JSON"),
    "unknown field": ({"inputs": {"image": X}, "parameters": {"cutaway": '{"mode": 1}'}}, 'no field named "mode"'),
    "module": (
        {"inputs": {"image": X}, "parameters": {"cutaway": '{"captures": [{"module": "conw"}]}'}},
        "captures[0].module",
    ),
    "model inside": (
        {"inputs": {"image": X}, "parameters": {"cutaway": '{"model": "same"}'}},
        "parameters.cutaway.model: is set by the request itself",
    ),
    "unknown parameter": ({"inputs": {"image": X}, "parameters": {"colour": 3}}, "parameters.colour: is not served"),
    "priority": ({"inputs": {"image": X}, "priority": 1}, "parameters.priority: is not served"),
    "sequence": ({"inputs": {"image": X}, "sequence_id": 5}, "parameters.sequence_end: is not served"),
    "deadline": ({"inputs": {"image": X}, "timeout": 1}, "deadline"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(door: Door, name: str) -> None:
    asked, words = WRONG[name]
    asked = dict(asked)
    assert words in door.refused(asked.pop("inputs"), **asked)


def test_shared_memory_is_refused_in_words(door: Door) -> None:
    each = door.kind.InferInput("image", X.shape, "FP32")
    each.set_shared_memory("region", X.nbytes)
    with pytest.raises(InferenceServerException, match="shared memory is not served: send the bytes"):
        door.client.infer("classes", [each])
    asked = door.kind.InferRequestedOutput("output")
    asked.set_shared_memory("region", 24)
    with pytest.raises(InferenceServerException, match=r"outputs\[0\].*shared memory is not served"):
        door.client.infer("classes", [door.input("image", X)], outputs=[asked])
    for call in (
        lambda: door.client.register_system_shared_memory("region", "key", 24),
        lambda: door.client.get_cuda_shared_memory_status(),
    ):
        with pytest.raises(InferenceServerException, match="shared memory is not served: send the bytes"):
            call()


def test_what_else_triton_has_is_refused(door: Door) -> None:
    status = "UNIMPLEMENTED" if door.kind is by_grpc else "501"
    for call in (
        lambda: door.client.get_model_config("classes"),
        lambda: door.client.get_inference_statistics("classes"),
        lambda: door.client.get_model_repository_index(),
        lambda: door.client.load_model("classes"),
        lambda: door.client.get_log_settings(),
    ):
        with pytest.raises(InferenceServerException, match=status):
            call()


def test_every_method_of_tritons_service_has_an_answer() -> None:
    triton = {method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    served = {"ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata"}
    assert triton == {*UNSERVED, *served, "ModelInfer", "ModelStreamInfer"}


def test_a_request_that_is_too_large(door: Door) -> None:
    assert "are allowed" in door.refused({"input": np.zeros((1, 300_000), np.float32)}, model="same")


def test_a_stream_answers_one_request_after_the_other(server: Served, ours: ca.Client) -> None:
    """An error is that of its request; the stream goes on."""
    replies: queue.Queue[tuple[Any, Any]] = queue.Queue()
    expected = ours.inspect("classes", X).predictions["output"]
    with connected(by_grpc, server) as door:
        client = door.client
        client.start_stream(lambda result, error: replies.put((result, error)))
        for name, model in (("a", "classes"), ("b", "nobody"), ("c", "classes")):
            client.async_stream_infer(model, [door.input("image", X)], request_id=name)
        got = [replies.get(timeout=60) for _ in range(3)]
        client.stop_stream()
    assert [failure is None for _, failure in got] == [True, False, True]
    assert "MODEL_NOT_FOUND [model]: no model 'nobody'" in str(got[1][1])
    for (result, _), name in ((got[0], "a"), (got[2], "c")):
        assert result.get_response().id == name
        assert np.array_equal(result.as_numpy("output"), expected)
