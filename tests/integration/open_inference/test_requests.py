"""Requests as Triton's clients do not send them: typed contents, JSON by hand, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from cutaway.contract.wire import grpc_status
from cutaway.gateway import serve
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from tests.integration.open_inference.models import NUMBERS, Classes, Same, X
from tests.support.doors import of_problem, post


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve({"classes": Classes(), "same": Same()}, settings=Settings(http_address="127.0.0.1:0")) as running:
        yield running


@pytest.fixture
def stub(server: Served) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def test_bfloat16(stub: Any) -> None:
    bits = np.array([0x3F80, 0xC000], "<u2").tobytes()  # 1 and -2
    request = _request("same", _input("input", "BF16", [2]), raw=[bits])
    reply = stub.ModelInfer(request)
    assert (reply.outputs[0].datatype, reply.raw_output_contents) == ("BF16", [bits])


def test_errors_keep_our_reason(server: Served, stub: Any) -> None:
    request = _request("classes", _input("image", "FP32", [1, 1, 6, 6]), raw=[X[:1].tobytes()])
    request.parameters["cutaway"].string_param = '{"captures": [{"module": "conw"}]}'
    with pytest.raises(grpc.RpcError) as failure:
        stub.ModelInfer(request)
    trailers: Any = failure.value.trailing_metadata()
    told = grpc_status.decode(failure.value.code().value[0], "", trailers)
    assert (told.reason, told.field) == ("MODULE_NOT_FOUND", "captures[0].module")
    assert "x-request-id" in dict(trailers)
    body = {
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 6, 6], "data": X[:1].tolist()}],
        "parameters": {"cutaway": '{"captures": [{"module": "conw"}]}'},
    }
    status, headers, reply = post(
        f"http://{server.http_address}/v2/models/classes/infer", json.dumps(body).encode(), {}
    )
    same = of_problem(reply)
    assert (status, same.reason, same.field) == (400, told.reason, told.field)
    assert json.loads(reply)["error"] == failure.value.details()
    assert "x-request-id" in headers


def test_typed_contents(stub: Any) -> None:
    """The other way of a request: elements in the field of their type."""
    fields = {"BOOL": "bool", "UINT8": "uint", "INT64": "int64", "FP32": "fp32", "FP64": "fp64"}
    for datatype, numbers in NUMBERS.items():
        if datatype != "FP16":
            field = f"{fields.get(datatype, 'int')}_contents"
            reply = stub.ModelInfer(_request("same", _input("input", datatype, [2], {field: numbers.tolist()})))
            assert reply.raw_output_contents == [numbers.tobytes()], datatype


MIXED = {
    "both": ({"fp32_contents": [1.0]}, "FP32", [1], [b"1234"], "inputs[0].contents: cannot be mixed"),
    "another field": ({"fp64_contents": [1.0]}, "FP32", [1], [], "has its elements in fp32_contents, not in fp64"),
    "half": ({}, "FP16", [1], [], "FP16 has no contents"),
    "too large": ({"int_contents": [128]}, "INT8", [1], [], "inputs[0].data: holds 128, which int8 cannot hold"),
    "a type we lack": ({"uint_contents": [1]}, "UINT32", [1], [], "inputs[0].datatype: 'UINT32' is none of BOOL"),
    "too few": ({"fp32_contents": [1.0]}, "FP32", [2], [], "needs 8 bytes, got 4"),
    "too many raw": ({}, "FP32", [1], [b"1234", b"1234"], "raw_input_contents: has 2 elements, and there are 1"),
}


@pytest.mark.parametrize("name", MIXED)
def test_contents_that_cannot_be_read(stub: Any, name: str) -> None:
    case: Any = MIXED[name]
    contents, datatype, shape, raw, words = case
    with pytest.raises(grpc.RpcError) as failure:
        stub.ModelInfer(_request("same", _input("input", datatype, shape, contents), raw=raw))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in (failure.value.details() or "")


@pytest.mark.parametrize(("inner", "place"), [(False, ""), (True, "inputs[0]")])
def test_a_field_that_the_protocol_lacks_is_refused(server: Served, inner: bool, place: str) -> None:
    """By its number: the bytes are of a newer protocol, or of another one."""
    request = _request("same", _input("input", "FP32", [1]), raw=[b"1234"])
    (request.inputs[0] if inner else request).MergeFromString(b"\xfa\x07\x01a")
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as failure:
            call(request.SerializeToString())
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    details = failure.value.details() or ""
    assert details.startswith(place)
    assert "has no field number 127" in details


def _one(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1], **fields}]}


JSON_ERRORS: dict[str, tuple[Any, str]] = {
    "no list": ({"inputs": {}}, "inputs: is a list of objects"),
    "no data": (_one(), "send either the numbers, or"),
    "no shape": (_one(shape=None, data=[1]), "shape: is a list of whole"),
    "words": (_one(data=["1"]), "no numbers that FP32"),
    "an overflow": (_one(data=[1e39]), "data: holds 1e+39, which float32 cannot hold"),
    "halves": (_one(datatype="INT8", data=[0.5]), "no numbers that INT8"),
    "ragged": (_one(shape=[3], data=[[1], [2, 3]]), "no numbers that FP32"),
    "no bytes": (_one(parameters={"binary_data_size": 4}), "4 bytes do not follow"),
    "another model": ({"model_name": "classes", "inputs": []}, "model_name: is not 'same'"),
    "unknown": ({"inputs": [], "colour": 1}, "colour: the protocol has no such field"),
    "unknown in an input": (_one(data=[1], content=[2]), "inputs[0].content: the protocol has no such field"),
    "unknown in an output": (
        {**_one(data=[1]), "outputs": [{"name": "output", "datatype": "FP16"}]},
        "outputs[0].datatype: the protocol has no such field",
    ),
    **{
        f"{name} as {value!r}": ({"parameters": {name: value}, "inputs": []}, f"parameters.{name}: is ")
        for name, value in (("cutaway", 3), ("cutaway", True), ("binary_data_output", "true"), ("timeout", "5"))
    },
    "deep": ({"parameters": {"cutaway": {}}, "inputs": []}, "parameters.cutaway: is true, false, a whole number"),
}


@pytest.mark.parametrize("name", JSON_ERRORS)
def test_json_that_cannot_be_read(server: Served, name: str) -> None:
    body, words = JSON_ERRORS[name]
    url = f"http://{server.http_address}/v2/models/same/infer"
    status, _, reply = post(url, json.dumps(body).encode(), {})
    assert (status, words in json.loads(reply)["error"]) == (400, True), reply


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"inference-header-content-length": "99"}, 400, "99 bytes of JSON do not come"),
        ({"inference-header-content-length": "-1"}, 400, "is a number of bytes"),
        ({"inference-header-content-length": "2"}, 400, "bytes behind the JSON belong to no input"),
        ({"content-encoding": "gzip"}, 501, "'gzip' is not served"),
        ({"x-timeout-ms": "0"}, 400, "is a number of milliseconds"),
    ],
)
def test_headers_that_cannot_be_served(server: Served, headers: dict[str, str], status: int, words: str) -> None:
    got, _, reply = post(f"http://{server.http_address}/v2/models/same/infer", b"{}rest", headers)
    assert (got, words in json.loads(reply)["error"]) == (status, True), reply


def test_an_error_of_a_stream_has_its_requests_id(stub: Any) -> None:
    request = _request("nobody", _input("input", "FP32", [1]), raw=[b"1234"])
    request.id = "b"
    (reply,) = stub.ModelStreamInfer(iter([request]))
    assert (reply.infer_response.id, reply.error_message[:15]) == ("b", "MODEL_NOT_FOUND")


def test_reflection_has_the_service_and_its_messages(server: Served) -> None:
    """Beside ours, although this process has Triton's messages of the same names."""
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
            for symbol in ("inference.GRPCInferenceService", "cutaway.v1.InspectionService", "grpc.health.v1.Health")
        ),
    ]
    with grpc.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, *files = stub.ServerReflectionInfo(iter(asked))
    services = {service.name for service in listed.list_services_response.service}
    assert {"inference.GRPCInferenceService", "cutaway.v1.InspectionService", "grpc.health.v1.Health"} <= services
    protos = [each.file_descriptor_response.file_descriptor_proto for each in files]
    assert all(protos)
    assert b"open_inference.proto" in protos[0][0]
    assert b"ModelStatistics" not in protos[0][0]  # Triton's has it


def _input(name: str, datatype: str, shape: list[int], contents: Mapping[str, Any] | None = None) -> Any:
    filled = {"contents": service_pb2.InferTensorContents(**contents)} if contents else {}
    return service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, **filled)


def _request(model: str, *inputs: Any, raw: Sequence[bytes] = ()) -> Any:
    return service_pb2.ModelInferRequest(model_name=model, inputs=inputs, raw_input_contents=raw)
