"""The protocol's messages, in a descriptor pool of their own: clients of others register the same names in Python's
default pool, where a name can be once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "inference.GRPCInferenceService"

POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString((Path(__file__).parent / "open_inference.binpb").read_bytes()).file:
    POOL.AddSerializedFile(_file.SerializeToString())  # type: ignore[no-untyped-call]


def _message(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f"inference.{name}"))  # type: ignore[no-untyped-call]


ServerLiveResponse = _message("ServerLiveResponse")
ServerReadyResponse = _message("ServerReadyResponse")
ServerMetadataResponse = _message("ServerMetadataResponse")
ModelReadyRequest = _message("ModelReadyRequest")
ModelReadyResponse = _message("ModelReadyResponse")
ModelMetadataRequest = _message("ModelMetadataRequest")
ModelMetadataResponse = _message("ModelMetadataResponse")
ModelInferRequest = _message("ModelInferRequest")
ModelInferResponse = _message("ModelInferResponse")
ModelStreamInferResponse = _message("ModelStreamInferResponse")
