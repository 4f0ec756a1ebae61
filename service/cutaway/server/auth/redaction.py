"""Removes names of layers from replies to callers who may not see all layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from cutaway.contract.errors import CutawayError, Reason
from cutaway.server.auth.authorization import Permissions
from cutaway.v1 import inspection_pb2, inspection_service_pb2, model_pb2, worker_pb2

_WITHOUT_LAYERS = frozenset(
    {
        *(Reason.MALFORMED_REQUEST, Reason.UNKNOWN_FIELD, Reason.SCOPE_MISSING, Reason.LAYER_HIDDEN),
        *(Reason.MODEL_NOT_FOUND, Reason.VERSION_NOT_FOUND),
        *(Reason.INPUT_MISSING, Reason.INPUT_UNKNOWN, Reason.INPUT_EMPTY, Reason.INPUT_DTYPE, Reason.INPUT_SHAPE),
        *(Reason.BATCH_MISMATCH, Reason.TENSOR_SIZE, Reason.RAW_UNSUPPORTED, Reason.TEXT_TOO_LONG),
        *(Reason.OUTPUT_NOT_FOUND, Reason.TARGET_RANGE, Reason.TARGET_MISMATCH, Reason.TARGET_SHAPE),
        *(Reason.REPLY_TOO_LARGE, Reason.REQUEST_TOO_LARGE, Reason.OVERLOADED, Reason.DEADLINE_EXCEEDED),
    }
)
"""Reasons whose messages are about inputs and outputs only, and never name a layer."""


@contextmanager
def redacted_errors(permissions: Permissions) -> Iterator[None]:
    """Replaces the message of an error in the block by its reason's meaning if the message could name layers."""
    try:
        yield
    except CutawayError as failure:
        if not permissions.unredacted:
            failure.message = _redact_message(failure.reason, failure.message)
        raise


def _redact_message(name: str, message: str) -> str:
    """Returns ``message``, of an error whose reason has that ``name``, unless it could name layers."""
    if name in _WITHOUT_LAYERS:
        return message
    reason = Reason.__members__.get(name)
    meaning = reason.meaning if reason else "The reason is unknown."
    return f"{meaning} This token may not see details."


def redact_reply(permissions: Permissions, reply: worker_pb2.WorkerReply) -> None:
    """Redacts the texts of a worker's reply with a `cutaway.v1.InspectResponse`: the worker has refused names of hidden
    layers."""
    if permissions.unredacted:
        return
    response = inspection_pb2.InspectResponse.FromString(reply.response)
    _redact(permissions, response)
    reply.response = response.SerializeToString()


def _redact(permissions: Permissions, response: inspection_pb2.InspectResponse) -> None:
    for attribution in response.attributions:
        if attribution.HasField("error"):
            attribution.error.message = _redact_message(attribution.error.reason, attribution.error.message)
        for check in attribution.checks:
            check.reason = ""  # it may name a layer; the cause is kept
            for row in check.rows:
                row.reason = ""
    for warning in response.warnings:
        warning.message = _WARNINGS.get(warning.code, "")
        if not (re.match(r"(edits|explain_if)\b", warning.subject) or permissions.can_see(warning.subject)):
            warning.subject = ""


_WARNINGS = {
    inspection_pb2.WARNING_CODE_MODULE_NOT_CALLED: "the forward pass did not call it",
    inspection_pb2.WARNING_CODE_NO_GRADIENT: "no gradient arrived there",
    inspection_pb2.WARNING_CODE_EDIT_WITHOUT_EFFECT: "the edit changed nothing",
    inspection_pb2.WARNING_CODE_NOT_A_TENSOR: "there is no tensor",
    inspection_pb2.WARNING_CODE_ROWS_NOT_INDEPENDENT: "the rows of the model are not independent",
    inspection_pb2.WARNING_CODE_NOT_EXPLAINED: "no example met the condition",
}
"""The message of a warning, without names of layers."""


def redact_model(permissions: Permissions, data: bytes) -> bytes:
    """Removes hidden layers from a serialised `cutaway.v1.GetModelResponse`; inputs and outputs stay."""
    if permissions.unredacted:
        return data
    response = inspection_service_pb2.GetModelResponse.FromString(data)
    model = response.model
    visible = model_pb2.ModelDetail(
        modules=[module for module in model.modules if permissions.can_see(module.name)],
        operators=[op for op in model.operators if permissions.can_see(op.address.rpartition(":")[0])],
    )
    for module in visible.modules:
        module.aliases[:] = [alias for alias in module.aliases if permissions.can_see(alias)]
    for field in ("modules", "operators"):
        model.ClearField(field)
    model.MergeFrom(visible)
    return response.SerializeToString()
