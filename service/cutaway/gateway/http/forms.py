"""Forms, as a page or ``curl -F`` sends them: files for the model to decode, and the fields of the request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from cutaway.errors import Reason, error
from cutaway.gateway.http.instances import NPY, arrays_in
from cutaway.gateway.http.request_body import RequestBody
from cutaway.requests import Raw

_MAX_FILES = 1000
_RIGHT = "name each file `instances`, or an NPY file after its input"


async def form_of(
    headers: Mapping[str, str], body: RequestBody, max_bytes: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the fields and the inputs in a form.

    Its files called ``instances`` are examples for the model to decode, of the media type that they have; NPY files
    with another name are tensors of that name. Its field ``request`` has the other fields of a request, in JSON; a
    field with another name is one of them.

    Raises:
        CutawayError: the form cannot be read.
    """
    try:
        parser = MultiPartParser(
            Headers(dict(headers)), body.parts(), max_files=_MAX_FILES, max_fields=100, max_part_size=max_bytes
        )
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as failure:
        raise error(Reason.MALFORMED_REQUEST, f"the form cannot be read: {failure}"[:300]) from None
    try:
        return await _read(form.multi_items(), max_bytes)
    finally:
        await form.close()


async def _read(items: list[tuple[str, Any]], max_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    fields: dict[str, Any] = {}
    examples: list[Raw] = []
    tensors: dict[str, Any] = {}
    for name, value in items:
        if not isinstance(value, UploadFile):
            fields |= _fields(name, value)
        elif name == "instances":
            examples.append(Raw(await value.read(), value.content_type or ""))
        else:
            tensors |= {name: arrays_in(await value.read(), NPY, max_bytes)[""]}
    if examples and tensors:
        raise error(Reason.INVALID_VALUE, f"the form has examples and tensors; {_RIGHT}", "instances")
    if not (examples or tensors):
        raise error(Reason.INPUT_EMPTY, f"the form has no file; {_RIGHT}", "instances")
    return fields, {"raw": tuple(examples)} if examples else {"tensors": tensors}


def _fields(name: str, text: str) -> dict[str, Any]:
    """Returns the fields of a request that a field of the form has; a text that is no JSON is itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name != "request":
        return {name: value}
    if not isinstance(value, dict):
        raise error(Reason.MALFORMED_REQUEST, "is no JSON object", "request")
    return value
