"""Request bytes in, reply bytes out: what TorchServe's handler and the embedded backend both call.

One worker holds one copy of one model. Hooks are state of that copy, so one request runs at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from cutaway import archive
from cutaway.adapters import Adapter, TensorAdapter, find, make, mount
from cutaway.engine.arrays import from_numpy
from cutaway.engine.describe import describe
from cutaway.engine.inputs import validated
from cutaway.engine.run import inspect, provenance
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.timed import timed
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail, ModelName, Provenance, Timings, TokenAttribution
from cutaway.settings import Settings
from cutaway.v1 import inspection_service_pb2, worker_pb2
from cutaway.version import __version__
from cutaway.wire import models as wire_models
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results

log = logging.getLogger(__name__)

Row = Mapping[str, bytes]
"""One call's parts by name: the question under its kind (``inspect``, ``describe``), and ``deadline``, as Unix
seconds in ASCII."""


class Worker:
    """One model, answering.

    Args:
        subject: the model.
        adapter: what decodes raw bytes for it.
        name: the model and version it is served as.
        max_reply_bytes: the largest reply that can be carried back.
    """

    def __init__(self, subject: Subject, adapter: Adapter, name: ModelName, max_reply_bytes: int) -> None:
        self._subject = subject
        self._adapter = adapter
        self._name = name
        self._max_reply_bytes = max_reply_bytes
        self._kinds: dict[str, Callable[[bytes, float | None], bytes]] = {
            "inspect": self._inspect,
            "describe": self._describe,
        }

    @classmethod
    def load(cls, model_dir: Path, *, device: str) -> Worker:
        """The model in an unpacked archive.

        Raises:
            InvalidArgument: ``ARCHIVE_CORRUPT`` or ``ADAPTER_INVALID``.
        """
        manifest = archive.unpacked(model_dir)
        weights = model_dir / manifest.weights if manifest.weights else None
        adapter = make(find(manifest.adapter, model_dir), manifest.options, model_dir, weights)
        name = ModelName(manifest.model, manifest.version)
        return cls(mount(adapter, device), adapter, name, Settings.load().max_message_bytes)

    @classmethod
    def of(cls, model: nn.Module | Adapter, name: str, *, max_reply_bytes: int, device: str = "cpu") -> Worker:
        """A model that is there already, served as version 1.0."""
        adapter = model if isinstance(model, Adapter) else TensorAdapter(model)
        return cls(mount(adapter, device), adapter, ModelName(name, "1.0"), max_reply_bytes)

    @property
    def name(self) -> ModelName:
        """What this worker serves."""
        return self._name

    def shares_with(self, other: Worker) -> bool:
        """Whether the two have a module in common; hooks of one would then sit in the other."""
        return not set(self._subject.module.modules()).isdisjoint(other._subject.module.modules())

    def answer(self, rows: Sequence[Row]) -> list[bytes]:
        """One serialised `cutaway.v1.WorkerReply` a row, in order. Never raises: an error is a reply."""
        return [self._answer(row) for row in rows]

    def _answer(self, row: Row) -> bytes:
        start = time.perf_counter()
        reply = worker_pb2.WorkerReply()
        try:
            reply.response = self._dispatch(row)
        except BaseException as failure:  # a model that exits, or cancels, ends its own request, not the others
            reply.failure.CopyFrom(as_failure(failure))
        reply.worker_ms = (time.perf_counter() - start) * 1000
        return reply.SerializeToString()

    def _dispatch(self, row: Row) -> bytes:
        kinds = [kind for kind in self._kinds if kind in row]
        if len(kinds) != 1:
            raise error(
                Reason.MALFORMED_REQUEST,
                f"a call has exactly one of the parts {', '.join(self._kinds)}, got {', '.join(sorted(row)) or 'none'}",
            )
        deadline = _deadline(row.get("deadline", b""))
        if deadline is not None and deadline < time.time():
            raise error(Reason.DEADLINE_EXCEEDED, "the deadline passed while the call was waiting for its turn")
        return self._kinds[kinds[0]](row[kinds[0]], deadline)

    def _inspect(self, data: bytes, deadline: float | None) -> bytes:
        timings = Timings()
        with timed(timings, "decode_ms"):
            request = wire_requests.decode(data)
            inputs = self._inputs(request)
        result = inspect(self._subject, request, inputs, until=deadline)
        with timed(timings, "encode_ms"):
            message = wire_results.encode(self._named(result))
            _refuse_large(message.ByteSize(), request.max_reply_bytes, self._max_reply_bytes)
            reply = message.SerializeToString()
        return reply + supplement(decode_ms=timings.decode_ms, encode_ms=timings.encode_ms)

    def _named(self, result: InspectResult) -> InspectResult:
        """``result`` with what only the adapter and the server know: tokens' texts, names and versions."""
        return replace(
            result,
            provenance=self._provenance(result.provenance),
            attributions=tuple(
                each if each.tokens is None else replace(each, tokens=self._texts(each.tokens))
                for each in result.attributions
            ),
        )

    def _texts(self, tokens: TokenAttribution) -> TokenAttribution:
        rows = [tuple(self._adapter.token_texts(row)) for row in tokens.ids.tolist()]
        return replace(tokens, texts=tuple(rows) if any(rows) else ())

    def _inputs(self, request: InspectRequest) -> Inputs:
        with at("raw" if request.raw else "tensors.by_name"):
            tensors = self._decoded(request) if request.raw else {
                name: from_numpy(array) for name, array in request.tensors.items()
            }  # fmt: skip
            inputs = validated(self._subject.inputs, tensors)
        return {name: tensor.to(self._subject.device) for name, tensor in inputs.items()}

    def _decoded(self, request: InspectRequest) -> Inputs:
        examples = []
        for index, raw in enumerate(request.raw):
            with at(f"examples[{index}]"):
                examples.append(self._adapter.decode(raw.data, raw.media_type))
        return self._adapter.collate(examples)

    def _describe(self, data: bytes, _: float | None) -> bytes:
        operators = wire_models.decode_question(data).operators
        example = self._adapter.example()
        modules, outputs, inside = describe(
            self._subject,
            None if example is None else {n: t.to(self._subject.device) for n, t in example.items()},
            operators=operators,
        )
        self._subject.passes.reset()
        detail = ModelDetail(
            model=self._name,
            inputs=tuple(self._subject.inputs),
            outputs=outputs,
            labels=tuple(self._subject.labels),
            media_types=tuple(self._adapter.media_types),
            modules=modules,
            provenance=self._provenance(provenance(self._subject)),
            operators=inside,
        )
        return inspection_service_pb2.GetModelResponse(model=wire_models.encode(detail)).SerializeToString()

    def _provenance(self, found: Provenance) -> Provenance:
        return replace(found, model=self._name.model, version=self._name.version, cutaway_version=__version__)


def supplement(**timings: float) -> bytes:
    """Bytes that, appended to a serialised InspectResponse, set further timings in it: protobuf merges what is
    concatenated."""
    message = worker_pb2.ReplySupplement()
    for stage, milliseconds in timings.items():
        setattr(message.timings, stage, milliseconds)
    return message.SerializeToString()


def as_failure(failure: BaseException) -> worker_pb2.Failure:
    """``failure`` as it travels in a reply; what is nobody's fault but ours goes to the log with its traceback."""
    if not isinstance(failure, CutawayError):
        failure = _named(failure)
    return worker_pb2.Failure(code=failure.code, reason=failure.reason, message=failure.message, field=failure.field)


def _named(failure: BaseException) -> CutawayError:
    if isinstance(failure, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(failure):
        return error(Reason.OUT_OF_MEMORY, "the request needs more memory than there is; send fewer rows, ask for less")
    log.error("a request failed in a way that nobody foresaw", exc_info=failure)
    return error(Reason.INTERNAL, f"{type(failure).__name__}: {failure}"[:500])


def _deadline(word: bytes) -> float | None:
    try:
        return float(word) if word else None
    except ValueError:
        raise error(Reason.MALFORMED_REQUEST, "the deadline is Unix seconds in ASCII digits") from None


def _refuse_large(size: int, asked: int, carried: int) -> None:
    limit = min(asked or carried, carried)
    if size > limit:
        raise error(
            Reason.REPLY_TOO_LARGE,
            f"the reply would have {size} bytes, {limit} are allowed; capture fewer modules or send fewer rows",
            "options.max_reply_bytes" if asked and asked <= carried else "",
        )
