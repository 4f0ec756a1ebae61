"""Lists all models, page by page."""

from __future__ import annotations

from cutaway.gateway.rpc.servicer import Servicer
from cutaway.gateway.rpc.status import Context
from cutaway.results import ModelName
from cutaway.v1 import inspection_service_pb2
from cutaway.wire import models as wire_models


async def listed_models(servicer: Servicer, context: Context) -> list[ModelName]:
    """Returns all models that the admitted caller may call.

    Raises:
        Exception: what ``context.abort`` raises.
    """
    names: list[ModelName] = []
    token = ""
    while True:
        page = inspection_service_pb2.ListModelsRequest(page_size=1000, page_token=token).SerializeToString()
        reply = inspection_service_pb2.ListModelsResponse.FromString(
            await servicer.call("ListModels", page, context) or b""
        )
        names += [wire_models.decode_name(model) for model in reply.models]
        token = reply.next_page_token
        if not token:
            return names
