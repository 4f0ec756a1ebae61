"""Replies of a worker: the names that they carry, and streamed ones, part by part while the model runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from cutaway.adapters import Adapter
from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InputSpec, InspectResult, Progress, Provenance, Timings, TokenAttribution
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed
from cutaway.contract.wire.chunks import StreamEncoder, joined, progress_piece, rest, worker_piece
from cutaway.contract.wire.worker_reply import with_header
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import Cancellation, timed
from cutaway.server.worker.call import (
    Call,
    PieceQueue,
    WaitingPieces,
    as_failure,
    check_reply_size,
    until_deadline,
    with_failure,
)
from cutaway.v1 import worker_pb2

_WAIT_S = 0.05
"""Seconds that a model waits at most until its prediction was sent: explanations take all CPUs from the sender."""


@dataclass(eq=False)
class StreamedReply:
    """A streamed reply; one in parts listens to its request, as `cutaway.engine.model.session.Listener`.

    Attributes:
        call: the call.
        request: its request.
        chunk_bytes: the largest size of a chunk.
        waiting: where the pieces wait for a connection that fetches them.
        complete: adds to a part of the result what the engine does not know, and casts its arrays.
        most_bytes: of a message.
        passes: see `Listener`.
    """

    call: Call
    request: InspectRequest
    chunk_bytes: int
    waiting: WaitingPieces
    complete: Callable[[InspectResult], InspectResult]
    most_bytes: int
    passes: Sequence[int] = ()
    _start: float = field(init=False, default_factory=time.perf_counter)
    _timings: Timings = field(init=False, default_factory=Timings)
    _queue: PieceQueue = field(init=False, default_factory=PieceQueue)
    _number: int = field(init=False, default=0)
    _sent: InspectResult = field(init=False, default_factory=lambda: InspectResult({}))
    _failure: BaseException | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._encoder = StreamEncoder(self.request.compression)

    @property
    def cancellation(self) -> Cancellation:
        """That of the call; one whose reply cannot be sent needs no further pass."""
        cancellation = self.call.cancellation
        return cancellation._replace(hung_up=lambda: self._failure is not None or cancellation.hung_up())

    def so_far(self, result: InspectResult) -> None:
        """Sends the parts of ``result`` that were not sent before; the engine calls this when the result has grown."""
        if self._failure is None:
            try:
                self._send(result)
            except BaseException as failure:
                self._failure = failure

    def progress(self, progress: Progress) -> None:
        """Sends how far the attributions are."""
        self._queue.put(iter((progress_piece(progress),)))

    def end(self, outcome: InspectResult | BaseException, decode_ms: float = 0.0) -> worker_pb2.WorkerReply:
        """Sends the rest of the reply, or why there is none.

        Returns:
            The worker's reply, with the number of the pieces.

        Raises:
            BaseException: ``outcome``, or the error of a part, if nothing was sent before.
        """
        failure = self._failure or (outcome if isinstance(outcome, BaseException) else None)
        if failure is None and isinstance(outcome, InspectResult):
            try:
                self._send(outcome, decode_ms)
                self._queue.put(self._encoder.trailer())
            except BaseException as fault:
                failure = fault
        if failure is not None:
            if not self._number:
                raise failure
            self._queue.put(iter((worker_piece(worker_pb2.WorkerReply(failure=as_failure(failure))),)))
        self._queue.put(None)
        return worker_pb2.WorkerReply(pieces=self._number)

    def _send(self, result: InspectResult, decode_ms: float | None = None) -> None:
        """Sends the next part; the last one if there is a ``decode_ms``."""
        part, is_last = rest(result, self._sent), decode_ms is not None
        if self._number and not (part.attributions or part.generated or is_last):  # the request runs again
            return
        if any(one.tokens != sent.tokens for one, sent in zip(result.generated, self._sent.generated)):
            raise error(Reason.INTERNAL, "the texts had to be written again, and have other tokens: ask again")
        with timed(self._timings, "encode_ms"):
            complete = self.complete(part)
            names = {field: _new(getattr(complete, field), getattr(self._sent, field)) for field in _NAMES}
            if not is_last:
                complete = changed(complete, provenance=Provenance())
            complete = changed(complete, **names)
            header = self._encoder.header(complete)
        self._check_size(header.ByteSize())
        if decode_ms is not None:
            header.timings.decode_ms, header.timings.encode_ms = decode_ms, self._timings.encode_ms
        reply = with_header(header)
        reply.worker_ms = (time.perf_counter() - self._start) * 1000
        pieces = chain((worker_piece(reply),), self._encoder.chunks(complete, self.chunk_bytes))
        self._queue.put(with_failure(until_deadline(pieces, self.call.cancellation.deadline)))
        self._sent = joined(self._sent, changed(part, **names))
        if not self._number:
            self._number = self.waiting.put(self._queue)
            if self.call.begun is not None and not is_last:
                self.call.begun(worker_pb2.WorkerReply(pieces=self._number).SerializeToString())
                self._queue.wait_until_sent(_WAIT_S)

    def _check_size(self, header_bytes: int) -> None:
        size, allowed = self._encoder.reply_bytes, self.request.max_reply_bytes
        check_reply_size(size, allowed, self.most_bytes if self.call.buffered else max(size, allowed))
        check_reply_size(header_bytes, 0, self.most_bytes)


_NAMES = ("feature_names", "labels")
"""The fields that an adapter adds to each part."""


def _new(names: Mapping[Any, Any], sent: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: each for key, each in names.items() if key not in sent}


def with_names(adapter: Adapter, model: InspectedModel, result: InspectResult) -> InspectResult:
    """Returns ``result`` with texts of tokens, names of features and labels of classes."""
    return changed(
        result,
        attributions=tuple(
            each if each.tokens is None else changed(each, tokens=_with_texts(adapter, each.tokens))
            for each in result.attributions
        ),
        feature_names=_feature_names(model.inputs, result),
        labels=_class_labels(model.labels, result),
    )


def _with_texts(adapter: Adapter, tokens: TokenAttribution) -> TokenAttribution:
    def texts(ids: Array | None) -> tuple[tuple[str, ...], ...]:
        rows = [tuple(adapter.token_texts(row)) for row in ([] if ids is None else ids.tolist())]
        return tuple(rows) if any(rows) else ()

    return changed(tokens, texts=texts(tokens.ids), baseline_texts=texts(tokens.baseline_ids))


def _feature_names(inputs: Sequence[InputSpec], result: InspectResult) -> dict[str, tuple[str, ...]]:
    """Returns the names of the features of those ``inputs`` that gradients, attributions or changes in ``result`` are
    about."""
    shown = {*result.input_gradients, *(result.counterfactual.inputs if result.counterfactual else ())}
    shown |= {name for attribution in result.attributions for name in attribution.values}
    return {spec.name: spec.feature_names for spec in inputs if spec.feature_names and spec.name in shown}


_FEW_CLASSES = 32
_LIKELIEST = 10  # of a row: more than any view draws


def _class_labels(labels: Sequence[str], result: InspectResult) -> dict[int, str]:
    """Returns the labels of the classes that ``result`` names: of few classes all; of many the predicted and explained
    ones, those that changes lead to, and the likeliest of each row."""
    found, predicted = result.counterfactual, (*result.classes, *result.unedited_classes)
    arrays = [result.targets, None if found is None else found.classes]
    arrays += [each.targets for each in result.attributions] + [each.classes for each in result.attacks]
    known = [array for array in arrays if array is not None]
    if not labels or not (predicted or known):
        return {}
    if len(labels) <= _FEW_CLASSES:
        return dict(enumerate(labels))
    outputs = (next(iter(outputs.values()), np.empty(0)) for outputs in (result.predictions, result.unedited))
    scores = (output.astype(np.float32) for output in outputs if predicted and output.ndim == 2)
    known += [np.argpartition(each, -min(_LIKELIEST, each.shape[-1]))[:, -_LIKELIEST:] for each in scores]
    named = {each.index for each in predicted}.union(*(array.reshape(-1).tolist() for array in known))
    return {index: labels[index] for index in sorted(named) if 0 <= index < len(labels)}
