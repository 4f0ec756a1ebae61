"""Request bytes in, reply bytes out: what TorchServe's handler and the embedded backend both call.

One worker holds one copy of one model. Hooks are state of that copy, so one batch runs at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from torch import nn

from cutaway import archive, hangups, propagation
from cutaway.adapters import Adapter, TensorAdapter, find, make, mount
from cutaway.channel import Outlet
from cutaway.engine.arrays import from_numpy
from cutaway.engine.batch import Ask, inspect_all
from cutaway.engine.cost import costs
from cutaway.engine.describe import describe
from cutaway.engine.inputs import validated
from cutaway.engine.patience import Patience
from cutaway.engine.rows import kept_apart
from cutaway.engine.run import at_work, provenance
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.timed import timed
from cutaway.errors import Reason, at, error
from cutaway.limits import Limits, deadline_in, refuse_large, refuse_late
from cutaway.mishaps import as_failure
from cutaway.requests import InspectRequest
from cutaway.results import InspectResult, ModelDetail, ModelName, Provenance, Timings, TokenAttribution
from cutaway.settings import Settings
from cutaway.v1 import inspection_service_pb2, worker_pb2
from cutaway.version import __version__
from cutaway.wire import models as wire_models
from cutaway.wire import pieces
from cutaway.wire import requests as wire_requests
from cutaway.wire import results as wire_results
from cutaway.wire.replies import as_asked
from cutaway.wire.supplements import supplement

log = logging.getLogger(__name__)

T = TypeVar("T")

Row = Mapping[str, bytes]
"""One call's parts by name: the question under its kind (``inspect``, ``describe``, ``stream``), ``deadline``, as Unix
seconds in ASCII, those of `cutaway.hangups` and `cutaway.propagation`, and ``pipe``, the path of the `cutaway.channel`
that the answer to ``stream`` goes through; or several calls as ``batch``, a serialised `cutaway.v1.WorkerBatch`."""


class _Asked(NamedTuple):
    """A question on its way to the model: when it began to be read, and how long that took; for an answer in pieces,
    how large they are."""

    ask: Ask
    start: float
    decode_ms: float
    chunk_bytes: int = 0


class Worker:
    """One model, answering.

    Args:
        subject: the model.
        adapter: what decodes raw bytes for it.
        name: the model and version it is served as.
        max_reply_bytes: the largest reply that can be carried back.
        limits: what one request may ask for.
    """

    def __init__(
        self, subject: Subject, adapter: Adapter, name: ModelName, max_reply_bytes: int, limits: Limits
    ) -> None:
        self._subject = subject
        self._adapter = adapter
        self._name = name
        self._max_reply_bytes = max_reply_bytes
        self._limits = limits
        self._kinds: dict[str, Callable[[bytes, Patience], _Asked | bytes]] = {
            "inspect": self._inspect,
            "describe": self._describe,
            "stream": self._stream,
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
        settings = Settings.load()
        worker = cls(mount(adapter, device), adapter, name, settings.max_message_bytes, Limits.of(settings))
        worker._look_at_rows()
        return worker

    @classmethod
    def of(
        cls,
        model: nn.Module | Adapter,
        name: str,
        *,
        max_reply_bytes: int,
        limits: Limits | None = None,
        device: str = "cpu",
    ) -> Worker:
        """A model that is there already, served as version 1.0; by default with the limits of the settings."""
        adapter = model if isinstance(model, Adapter) else TensorAdapter(model)
        allowed = limits or Limits.of(Settings.load())
        return cls(mount(adapter, device), adapter, ModelName(name, "1.0"), max_reply_bytes, allowed)

    def _look_at_rows(self) -> None:
        """Find out whether rows of several calls may share a batch, before anybody waits for it."""
        try:
            example = self._example()
            with at_work(self._subject):
                if example is not None and not kept_apart(self._subject, example, ()):
                    log.warning("%s: rows cannot be proven to be independent; calls run one by one", self._name.model)
        except Exception as failure:  # the example's own: whoever asks for it is told
            log.warning("%s: its example cannot be run: %s", self._name.model, failure)

    def _example(self) -> Inputs | None:
        example = self._adapter.example()
        return None if example is None else {name: each.to(self._subject.device) for name, each in example.items()}

    @property
    def name(self) -> ModelName:
        """What this worker serves."""
        return self._name

    def shares_with(self, other: Worker) -> bool:
        """Whether the two have a module in common; hooks of one would then sit in the other."""
        return not set(self._subject.module.modules()).isdisjoint(other._subject.module.modules())

    def answer(self, rows: Sequence[Row]) -> list[bytes]:
        """One serialised `cutaway.v1.WorkerReply` a row, in order. Never raises: an error is a reply."""
        start = time.perf_counter()
        calls = [_caught(_calls, row) for row in rows]
        replies = iter(self._replies([each for some in calls if isinstance(some, list) for each in some], start))
        return [
            _reply(some, start)
            if isinstance(some, BaseException)
            else _together([next(replies) for _ in some], self._max_reply_bytes, start)
            if "batch" in row
            else next(replies)
            for row, some in zip(rows, calls)
        ]

    def _replies(self, rows: Sequence[Row], start: float) -> list[bytes]:
        with propagation.below(rows):
            opened = [_caught(self._opened, row) for row in rows]
            asked = [each for each in opened if isinstance(each, _Asked)]
            results = iter(inspect_all(self._subject, [each.ask for each in asked]))
        return [
            _reply(_caught(self._closed, each, row, next(results)) if isinstance(each, _Asked) else each, start)
            for row, each in zip(rows, opened)
        ]

    def stream(self, row: Row, *, held: bool = True) -> Iterator[pieces.Piece]:
        """The answer to the question under ``stream`` in pieces, `cutaway.v1.StreamPiece`.

        All of it is computed before the first. Never raises: an error is a piece, the last one.

        Args:
            row: the call.
            held: whether what carries the pieces may hold them all: they then have no more bytes than one reply.
        """
        parts = ("stream", "deadline", hangups.PART, propagation.PART)
        return _told(self._pieces({part: row[part] for part in parts if part in row}, held))

    def _pieces(self, row: Row, held: bool) -> Iterator[pieces.Piece]:
        with propagation.below([row]):
            asked = self._opened(row)
            answers = inspect_all(self._subject, [asked.ask]) if isinstance(asked, _Asked) else []
        if isinstance(asked, _Asked):
            for piece in self._cut(asked, answers[0], held):
                refuse_late(asked.ask.patience.until, "before the whole reply was sent")
                yield piece

    def _opened(self, row: Row) -> _Asked | bytes:
        """The question in ``row``; or the answer, where no pass is needed for it."""
        kinds = [kind for kind in self._kinds if kind in row]
        if len(kinds) != 1:
            raise error(
                Reason.MALFORMED_REQUEST,
                f"a call has exactly one of the parts {', '.join(self._kinds)}, got {', '.join(sorted(row)) or 'none'}",
            )
        patience = Patience(deadline_in(row.get("deadline", b"")), hangups.gone(row.get(hangups.PART, b"")))
        refuse_late(patience.until, "while the call was waiting for its turn")
        patience.refuse()
        return self._kinds[kinds[0]](row[kinds[0]], patience)

    def _inspect(self, data: bytes, patience: Patience) -> _Asked:
        start = time.perf_counter()
        request = wire_requests.decode(data, most=self._max_reply_bytes)
        self._limits.refuse(request)
        inputs = self._inputs(request)
        self._limits.refuse_passes(costs(self._subject, request, inputs, patience=patience))
        return _Asked(Ask(request, inputs, patience), start, _since(start))

    def _stream(self, data: bytes, patience: Patience) -> _Asked:
        question = pieces.question(data)
        return self._inspect(question.request, patience)._replace(chunk_bytes=question.chunk_bytes)

    def _closed(self, asked: _Asked, row: Row, result: InspectResult | BaseException) -> bytes:
        """The serialised response; nothing, where it goes in pieces to where ``pipe`` says."""
        if isinstance(result, BaseException):
            raise result
        if asked.chunk_bytes:
            whole = self._cut(asked, result, held=False)
            Outlet(row.get("pipe", b""), asked.ask.patience.until).send(map(pieces.as_message, _told(whole)))
            return b""
        timings = Timings()
        with timed(timings, "encode_ms"):
            message = wire_results.encode(self._named(result, asked.ask.request), asked.ask.request.compression)
            refuse_large(message.ByteSize(), asked.ask.request.max_reply_bytes, self._max_reply_bytes)
            response = message.SerializeToString()
        return response + supplement(decode_ms=asked.decode_ms, encode_ms=timings.encode_ms)

    def _cut(self, asked: _Asked, result: InspectResult | BaseException, held: bool) -> Iterator[pieces.Piece]:
        """The response in pieces."""
        if isinstance(result, BaseException):
            raise result
        timings = Timings()
        with timed(timings, "encode_ms"):
            cut = pieces.Cut(self._named(result, asked.ask.request), asked.ask.request.compression)
        request = asked.ask.request
        carried = self._max_reply_bytes if held else max(cut.reply_bytes, request.max_reply_bytes)
        refuse_large(cut.reply_bytes, request.max_reply_bytes, carried)
        refuse_large(cut.header_bytes, 0, self._max_reply_bytes)
        cut.note(decode_ms=asked.decode_ms, encode_ms=timings.encode_ms)
        return cut.pieces(asked.chunk_bytes, worker_ms=_since(asked.start))

    def _named(self, result: InspectResult, request: InspectRequest) -> InspectResult:
        """``result`` with what only the adapter and the server know: tokens' texts, names and versions; as asked."""
        whole = replace(
            result,
            provenance=self._provenance(result.provenance),
            attributions=tuple(
                each if each.tokens is None else replace(each, tokens=self._texts(each.tokens))
                for each in result.attributions
            ),
        )
        return as_asked(whole, request)

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

    def _describe(self, data: bytes, _: Patience) -> bytes:
        operators = wire_models.decode_question(data).operators
        modules, outputs, inside = describe(self._subject, self._example(), operators=operators)
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


def _caught(do: Callable[..., T], *arguments: Any) -> T | BaseException:
    """What ``do`` returns, or what it raises: a model that exits, or cancels, ends its own request, not the others."""
    try:
        return do(*arguments)
    except BaseException as failure:
        return failure


def _calls(row: Row) -> list[Row]:
    """The calls that ``row`` is made of: itself, or those of the batch that it carries."""
    if "batch" not in row:
        return [row]
    try:
        return [each.parts for each in worker_pb2.WorkerBatch.FromString(row["batch"]).calls]
    except DecodeError:
        raise error(Reason.MALFORMED_REQUEST, "the part batch is no cutaway.v1.WorkerBatch") from None


def _together(replies: Sequence[bytes], most: int, start: float) -> bytes:
    """The replies of a batch in one, as many as a message carries; the first in any case."""
    size = 0
    carried: list[bytes] = []
    for each in replies:
        fits = not carried or size + len(each) <= most
        carried.append(each if fits else b"")
        size += len(each) if fits else 0
    return _reply(worker_pb2.WorkerBatchReply(replies=carried).SerializeToString(), start)


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1000


def _told(some: Iterator[pieces.Piece]) -> Iterator[pieces.Piece]:
    """``some``; whatever they raise is the last."""
    try:
        yield from some
    except GeneratorExit:
        raise
    except BaseException as failure:
        yield pieces.failure_piece(as_failure(failure))


def _reply(outcome: bytes | BaseException, start: float) -> bytes:
    reply = worker_pb2.WorkerReply()
    if isinstance(outcome, BaseException):
        reply.failure.CopyFrom(as_failure(outcome))
    else:
        reply.response = outcome
    reply.worker_ms = _since(start)
    return reply.SerializeToString()
