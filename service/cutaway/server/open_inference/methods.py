"""The protocol's methods, which its gRPC service and its REST routes share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cutaway.contract.errors import CutawayError
from cutaway.contract.results import ModelName
from cutaway.contract.values import __version__
from cutaway.contract.wire import models as wire_models
from cutaway.server.http import json_messages
from cutaway.server.http.http_call import HttpCall
from cutaway.server.open_inference import infer
from cutaway.server.open_inference.datatypes import NAMES, ModelMetadataResponse, ServerMetadataResponse
from cutaway.server.open_inference.infer import versioned
from cutaway.server.rpc.servicer import Servicer, listed_models
from cutaway.v1 import inspection_service_pb2

_PLATFORM = "pytorch_eager"
_EXTENSIONS = ("binary_tensor_data", "parameters")


T = TypeVar("T")


@dataclass(frozen=True)
class Form(Generic[T]):
    """The form of requests for inference: protobuf or JSON.

    Attributes:
        read: returns the ModelInferRequest in a request.
        write: returns the reply, from the ModelInferRequest and the ModelInferResponse.
    """

    read: Callable[[bytes], Any]
    write: Callable[[Any, Any], T]


class OpenInference:
    """The methods of the protocol, which become calls of a servicer.

    Args:
        servicer: answers the calls.
        serving: the models that answer; changes with them.

    Attributes:
        servicer: the servicer.
    """

    def __init__(self, servicer: Servicer, serving: Collection[ModelName]) -> None:
        self.servicer = servicer
        self._serving = serving

    def server_ready(self) -> bool:
        """Returns whether any model answers."""
        return bool(self._serving)

    def server_metadata(self) -> Any:
        """Returns a ServerMetadataResponse."""
        return ServerMetadataResponse(name="cutaway", version=__version__, extensions=_EXTENSIONS)

    async def model_ready(self, model: str, version: str, call: HttpCall) -> bool:
        """Returns whether a model answers.

        Raises:
            CutawayError: the model is not known to the caller.
        """
        try:
            return self.servicer.resolve(versioned(model, version)) in self._serving
        except CutawayError as failure:
            await self.servicer.refuse("GetModel", failure, call)
            raise

    async def model_metadata(self, model: str, version: str, call: HttpCall) -> Any:
        """Returns a ModelMetadataResponse.

        Raises:
            CutawayError: the model is not known to the caller, or does not answer.
        """
        data = wire_models.encode_model_request(versioned(model, version))
        reply = await self.servicer.call("GetModel", data, call) or b""
        detail = wire_models.decode(inspection_service_pb2.GetModelResponse.FromString(reply).model)
        names = await listed_models(self.servicer, call)
        response = ModelMetadataResponse(
            name=detail.model.model,
            versions=[name.version for name in names if name.model == detail.model.model],
            platform=_PLATFORM,
        )
        for spec in detail.inputs:
            response.inputs.add(name=spec.name, datatype=NAMES.get(spec.data_type, ""), shape=spec.shape)
        for out in detail.outputs:
            response.outputs.add(name=out.name, datatype=NAMES[out.data_type], shape=(-1, *out.shape[1:]))
        return response

    async def infer(self, data: bytes, form: Form[T], call: HttpCall) -> T:
        """Runs a model.

        Args:
            data: the request.
            form: how it is read, and its response written.
            call: may take the request's own time at most.

        Raises:
            CutawayError: the request cannot be read or run, or the reply has no such output.
        """
        try:
            request = await json_messages.converted(form.read, data)
            inference = infer.read(request)
        except CutawayError as failure:
            await self.servicer.refuse("Inspect", failure, call)
            raise
        if inference.timeout_s is not None:
            left = call.time_remaining()
            call.limit(inference.timeout_s if left is None else min(left, inference.timeout_s))
        reply = await self.servicer.call("Inspect", inference.request, call) or b""
        return await json_messages.converted(
            lambda message: form.write(request, infer.write(inference, message)), reply
        )
