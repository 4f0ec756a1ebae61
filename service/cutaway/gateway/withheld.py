"""What of a reply is kept back from a caller who may not see all of a model: names of its layers, wherever they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.errors import TABLE, CutawayError, Reason, error
from cutaway.gateway.access import Grant
from cutaway.gateway.places import owner
from cutaway.v1 import inspection_pb2, inspection_service_pb2, model_pb2

_ABOUT_THE_QUESTION = frozenset(
    {
        *(Reason.MALFORMED_REQUEST, Reason.UNKNOWN_FIELD, Reason.SCOPE_MISSING, Reason.LAYER_HIDDEN),
        *(Reason.MODEL_NOT_FOUND, Reason.VERSION_NOT_FOUND),
        *(Reason.INPUT_MISSING, Reason.INPUT_UNKNOWN, Reason.INPUT_EMPTY, Reason.INPUT_DTYPE, Reason.INPUT_SHAPE),
        *(Reason.BATCH_MISMATCH, Reason.TENSOR_SIZE, Reason.RAW_UNSUPPORTED, Reason.TEXT_TOO_LONG),
        *(Reason.OUTPUT_NOT_FOUND, Reason.TARGET_RANGE, Reason.TARGET_MISMATCH, Reason.TARGET_SHAPE),
        *(Reason.REPLY_TOO_LARGE, Reason.REQUEST_TOO_LARGE, Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED),
    }
)
"""Reasons whose messages speak of what goes in and comes out, and of nothing between."""


@contextmanager
def words(grant: Grant) -> Iterator[None]:
    """An error that leaves the block says what its reason means, where its own words could name layers."""
    try:
        yield
    except CutawayError as failure:
        if not grant.sees_all and failure.reason not in _ABOUT_THE_QUESTION:
            failure.message = _meaning(failure.reason)
        raise


def _meaning(reason: str) -> str:
    known = reason in list(Reason)
    return f"{TABLE[Reason(reason)].meaning} This token may not know more." if known else "unknown"


def response(grant: Grant, data: bytes) -> bytes:
    """A serialised `cutaway.v1.InspectResponse` without what ``grant`` does not show.

    Raises:
        PermissionDenied: ``LAYER_HIDDEN``, where it has values of such a layer, asked for by another of its names.
    """
    if grant.sees_all:
        return data
    found = inspection_pb2.InspectResponse.FromString(data)
    _withhold(grant, found)
    return found.SerializeToString()


def opening(grant: Grant, message: bytes) -> bytes:
    """The same for a serialised `cutaway.v1.InspectStreamResponse` that is no chunk."""
    if grant.sees_all:
        return message
    found = inspection_service_pb2.InspectStreamResponse.FromString(message)
    if not found.piece.HasField("header"):
        return message
    _withhold(grant, found.piece.header.response)
    return found.SerializeToString()


def _withhold(grant: Grant, found: inspection_pb2.InspectResponse) -> None:
    for name in _shown(found):
        if not grant.sees(name):
            raise error(Reason.LAYER_HIDDEN, "a layer goes by its first name, and this token may not see that one")
    for tensor in found.estimate.tensors:
        tensor.name = _place(grant, tensor.name)
    for attribution in found.attributions:
        for check in attribution.checks:
            check.reason = ""  # it may say where in the model; the cause says what
    for warning in found.warnings:
        warning.message = _WARNINGS.get(warning.code, "")
        if not (re.match(r"(edits|explain_if)\b", warning.subject) or grant.sees(warning.subject)):
            warning.subject = ""


def _shown(found: inspection_pb2.InspectResponse) -> Iterator[str]:
    """The layers that the reply has values of."""
    for capture in found.captures:
        yield owner(capture.module, "op" if "#" in capture.module else "module")
    for gradient in found.parameter_gradients:
        yield owner(gradient.name, "parameter")
    for attribution in found.attributions:
        if attribution.layer:
            yield attribution.layer


def _place(grant: Grant, place: str) -> str:
    """A place in a reply, such as ``captures.conv1.output``; cut short before a name that the caller may not see."""
    found = re.match(r"(captures|parameter_gradients|attributions\[\d+\]\.\w+)\.(.+)", place)
    if found is None:
        return place
    parts = re.split(r"[:\[]", found[2])[0].split(".")
    return place if any(grant.sees(".".join(parts[:end])) for end in range(1, len(parts) + 1)) else found[1]


_WARNINGS = {
    inspection_pb2.WARNING_CODE_MODULE_NOT_CALLED: "the forward pass did not call it",
    inspection_pb2.WARNING_CODE_NO_GRADIENT: "no gradient arrived there",
    inspection_pb2.WARNING_CODE_EDIT_WITHOUT_EFFECT: "the edit changed nothing",
    inspection_pb2.WARNING_CODE_NOT_A_TENSOR: "there is no tensor",
    inspection_pb2.WARNING_CODE_ROWS_NOT_INDEPENDENT: "the model does not keep its rows apart",
    inspection_pb2.WARNING_CODE_NOT_EXPLAINED: "no example met the condition",
}


def detail(grant: Grant, data: bytes) -> bytes:
    """A serialised `cutaway.v1.GetModelResponse` with the layers that ``grant`` shows; where there are none, what goes
    in and comes out of the model is left."""
    if grant.sees_all:
        return data
    found = inspection_service_pb2.GetModelResponse.FromString(data)
    modules = [module for module in found.model.modules if grant.sees(module.name)]
    operators = [each for each in found.model.operators if grant.sees(owner(each.address, "op"))]
    for module in modules:
        module.aliases[:] = [alias for alias in module.aliases if grant.sees(alias)]
    _replace(found.model, modules, operators)
    return found.SerializeToString()


def _replace(
    found: model_pb2.ModelDetail, modules: list[model_pb2.Module], operators: list[model_pb2.Operator]
) -> None:
    kept = model_pb2.ModelDetail(modules=modules, operators=operators)
    for field in ("modules", "operators"):
        found.ClearField(field)
    found.MergeFrom(kept)
