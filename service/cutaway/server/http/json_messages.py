"""Messages of the contract as JSON, by protobuf's own mapping.

JSON is limited to `MAX_JSON_BYTES`, and counted before it is parsed: Python's parser holds all other calls up while it
works, and makes objects of fifty bytes and more from two.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from cutaway.contract.errors import Reason, error, from_wire
from cutaway.contract.json_text import MAX_DEPTH, NumberTooLargeError, read_json
from cutaway.contract.results import InspectResult, Progress
from cutaway.contract.results.arrays import (
    ArrayField,
    Entry,
    by_name,
    entries,
    examples_first,
    npy,
    tensors,
    text_entries,
    write_npz,
)
from cutaway.contract.results.document import document, numbers
from cutaway.contract.results.explanations import AttributionResult, outcome_of_row
from cutaway.contract.tensors import Array
from cutaway.contract.wire import results as wire_results
from cutaway.contract.wire.message_walk import MAX_ENTRIES
from cutaway.v1 import inspection_service_pb2

MAX_JSON_BYTES = 16 << 20

MAX_ELEMENTS = 1 << 20
"""The most values of a request in JSON, with the lists and objects around them, and the most numbers of a reply."""


def check_json(text: bytes) -> None:
    """Counts what a JSON text holds, without parsing it.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for more texts and objects than `MAX_ENTRIES`, as in a message by gRPC;
            ``MALFORMED_REQUEST``, for more than `MAX_DEPTH`, and for UTF-16 and UTF-32, which Python would read too.
        ResourceExhausted: ``REQUEST_TOO_LARGE``.
    """
    if len(text) > MAX_JSON_BYTES:
        what = f"a request in JSON has at most {MAX_JSON_BYTES} bytes, this one has {len(text)}"
        raise error(Reason.REQUEST_TOO_LARGE, f"{what}; {_ADVICE}")
    if not json.detect_encoding(text).startswith("utf-8"):
        raise error(Reason.MALFORMED_REQUEST, "the request is no JSON: send UTF-8")
    if len(text) <= MAX_DEPTH:
        return
    if _within_limits(text):  # with what is in texts: there cannot be more
        return
    marks = _outside_of_texts(text)
    values = sum(map(marks.count, (b",", b"[", b"{")))
    if values > MAX_ELEMENTS:
        what = f"a request in JSON has at most {MAX_ELEMENTS} values, this one has {values}"
        raise error(Reason.REQUEST_TOO_LARGE, f"{what}; {_ADVICE}")
    several = marks.count(b"{") + marks.count(b'"') - marks.count(b":")  # texts that are no names have no colon
    if several > MAX_ENTRIES:
        what = f"the request has more than {MAX_ENTRIES} entries: it has {several} objects and texts"
        raise error(Reason.INVALID_VALUE, what)
    if (depth := _depth(marks)) > MAX_DEPTH:
        raise error(Reason.MALFORMED_REQUEST, f"the request is {depth} levels deep, {MAX_DEPTH} are the most")


def cost(text: bytes) -> int:
    """Returns how long a small JSON text takes to be converted, in bytes of a message: objects and texts count."""
    return len(text) // 4 + 64 * (text.count(b"{") + text.count(b'"'))


def _within_limits(text: bytes) -> bool:
    several = text.count(b"{") + text.count(b'"')
    values = sum(map(text.count, (b",", b"[", b"{")))
    return several <= MAX_ENTRIES and values <= MAX_ELEMENTS and _depth(text) <= MAX_DEPTH


_ADVICE = "send it as application/proto, or as NPY"


def _outside_of_texts(text: bytes) -> bytes:
    """Returns a JSON text without the content of its strings; one quotation mark stays for each, for counting."""
    plain = np.frombuffer(text.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    inside = np.cumsum(plain == ord('"'), dtype=np.uint8)  # odd inside of a text
    inside &= 1
    marks: bytes = plain[inside == 0].tobytes()
    return marks


def _depth(marks: bytes) -> int:
    brackets = np.frombuffer(marks.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0))


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def binary_of(kind: type[Message], text: bytes) -> bytes:
    """Returns the serialised message of the type ``kind`` that a JSON text holds.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST`` or ``UNKNOWN_FIELD``; ``INVALID_VALUE`` for a field that comes by both of
            its names; as `check_json`.
    """
    check_json(text)
    if text.lstrip()[:1] != b"{":  # protobuf takes a list or a text without elements for a message without fields
        raise error(Reason.MALFORMED_REQUEST, "the request is no object in JSON")
    value = value_in(text)
    _refuse_twice(kind.DESCRIPTOR, value, "")
    try:
        return json_format.ParseDict(value, kind()).SerializeToString()
    except json_format.ParseError as failure:
        reason = Reason.UNKNOWN_FIELD if "has no field named" in str(failure) else Reason.MALFORMED_REQUEST
        raise error(
            reason, f"the text is no {kind.DESCRIPTOR.full_name} in JSON: {str(failure).splitlines()[0]}"[:300]
        ) from None
    except Exception as failure:  # as protobuf's own Parse: SystemError, OverflowError, ...
        what = f"the text is no {kind.DESCRIPTOR.full_name} in JSON: {failure}"
        raise error(Reason.MALFORMED_REQUEST, what[:300]) from None


def _refuse_twice(kind: Any, value: Any, place: str) -> None:
    """Refuses a field with two values, one by each of its names; protobuf's reader takes the last.

    Args:
        kind: the descriptor of the message.
        value: the message in JSON, or anything else.
        place: where it is, with a point; empty for the request itself.
    """
    seen = set()
    for name, own in value.items() if isinstance(value, dict) else ():
        field = kind.fields_by_camelcase_name.get(name) or kind.fields_by_name.get(name)
        if field is None:
            continue
        if field in seen:
            raise error(Reason.INVALID_VALUE, "is given twice, by both of its names", f"{place}{field.name}"[:300])
        seen.add(field)
        for inner, part, key in _messages_in(field, own):
            _refuse_twice(inner, part, f"{place}{field.name}{key}.")


def _messages_in(field: Any, value: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yields the descriptor of each message in a field, its value in JSON, and its index or key."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        kind = kind.fields_by_name["value"].message_type
        parts = value.items() if isinstance(value, dict) and kind is not None else ()
        yield from ((kind, part, f".{key}") for key, part in parts)
    elif kind is not None and isinstance(value, list):
        yield from ((kind, part, f"[{index}]") for index, part in enumerate(value))
    elif kind is not None:
        yield kind, value, ""


def text_of(kind: type[Message], data: bytes) -> bytes:
    """Returns the JSON text of a serialised message.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
    """
    if len(data) > MAX_JSON_BYTES:
        what = f"the reply has {len(data)} bytes, and JSON holds at most {MAX_JSON_BYTES}"
        raise error(Reason.REPLY_TOO_LARGE, f"{what}; ask for application/proto, or for less")
    return json_format.MessageToJson(kind.FromString(data), indent=None).encode()


def mapping_in(text: bytes) -> dict[str, Any]:
    """Returns the object that a JSON text holds.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; as `check_json`.
    """
    check_json(text)
    value = value_in(text)
    if not isinstance(value, dict):
        raise error(Reason.MALFORMED_REQUEST, "the request is no JSON object")
    return value


def value_in(text: bytes) -> Any:
    """Returns the value of a JSON text that `check_json` has passed.

    Raises:
        InvalidArgument: ``MALFORMED_REQUEST``; ``INVALID_VALUE`` for a number that is too large.
    """
    try:
        return read_json(text)
    except NumberTooLargeError as failure:
        raise error(Reason.INVALID_VALUE, "is too large for a number", failure.place[:300]) from None
    except ValueError as failure:
        raise error(Reason.MALFORMED_REQUEST, f"the request is no JSON: {failure}"[:300]) from None


_PIECE = 10_000


def text_in_pieces(value: Any) -> str:
    """Returns a document as JSON; numbers that are not finite are errors.

    Python's encoder holds all other calls up while it works; it gets some ten thousand numbers at a time.
    """
    if _size(value) <= _PIECE:
        return json.dumps(value, allow_nan=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {text_in_pieces(own)}' for name, own in value.items())}}}"
    size = _size(value[0])
    if size > _PIECE:
        return f"[{', '.join(map(text_in_pieces, value))}]"
    steps = range(0, len(value), _PIECE // size)
    pieces = (json.dumps(value[start : start + steps.step], allow_nan=False)[1:-1] for start in steps)
    return f"[{', '.join(pieces)}]"


def _size(value: Any) -> int:
    """Returns about how many values there are: the elements of a list are alike."""
    if isinstance(value, dict):
        return 1 + sum(map(_size, value.values()))
    return 1 + len(value) * _size(value[0]) if isinstance(value, list) and value else 1


# Replies by REST: KServe's ``predictions`` and ``explanations``, or arrays in a file of numpy.
_FIELDS_IF_PRESENT = (
    "targets", "target_values", "captures", "input_gradients", "parameter_gradients", "unedited", "unedited_classes",
    "explained_rows", "feature_names", "labels", "example_axes", "texts", "generated", "finish_reasons",
    "unedited_texts", "replay", "receipts", "sweep", "sweep_estimates", "sweep_agreement", "direct", "direct_rest",
    "direct_bias", "attacks", "concepts", "influence", "agreements", "counterfactual",
)  # fmt: skip
_FIELDS_ALWAYS = ("warnings", "provenance", "timings")


def as_document(result: InspectResult, *, explains: bool) -> dict[str, Any]:
    """Returns a reply of TorchServe's REST form: ``predictions`` has an element for each instance, a row of the batch.

    With attributions, or ``explains``, ``explanations`` has an element for each instance too, and ``verdicts`` one for
    each method.

    Raises:
        ResourceExhausted: ``REPLY_TOO_LARGE``.
    """
    elements = sum(entry.array.size for entry in entries(result))
    if elements > MAX_ELEMENTS:
        what = f"the reply has {elements} numbers, and JSON holds at most {MAX_ELEMENTS}"
        raise error(Reason.REPLY_TOO_LARGE, f"{what}; accept application/x-npz, or ask for less")
    ordered = examples_first(result)
    rows = _row_count(ordered)
    reply: dict[str, Any] = {"predictions": _by_instance(ordered, rows)}
    if result.classes:
        reply["classes"] = document(result.classes)
    if explains or result.attributions:
        reply["explanations"] = [[_explanation(each, row) for each in ordered.attributions] for row in range(rows)]
        reply["verdicts"] = [_verdicts(attribution) for attribution in result.attributions]
    present = [name for name in _FIELDS_IF_PRESENT if _is_present(getattr(result, name))]
    reply |= {name: document(getattr(result, name), max_values=MAX_ELEMENTS) for name in (*present, *_FIELDS_ALWAYS)}
    if result.estimate is not None:
        reply["estimate"] = document(result.estimate)
    return reply


def part_of_document(part: InspectResult | Progress, is_first: bool) -> bytes:
    """Returns the JSON text of a part of a reply, or of how far it is: what `as_document` has for it, if not empty."""
    if isinstance(part, Progress):
        return json.dumps(document(part)).encode()
    later = () if part.provenance.model else ("provenance", "timings")
    own = as_document(part, explains=False)
    return text_in_pieces({name: value for name, value in own.items() if value and name not in later}).encode()


def part_of_contract(part: InspectResult | Progress, is_first: bool) -> bytes:
    """Returns the same as protobuf's JSON."""
    message: Message = inspection_service_pb2.StreamProgress()
    if isinstance(part, Progress):
        wire_results.PROGRESS.write(part, message)
    else:
        message = wire_results.encode_part(part, is_first=is_first)
    return json_format.MessageToJson(message, indent=None).encode()


def _is_present(value: Any) -> bool:
    return value is not None and (not isinstance(value, Sized) or len(value) > 0)


def _row_count(result: InspectResult) -> int:
    """Returns how many instances there are: a request may ask for no predictions."""
    arrays = [array for attribution in result.attributions for array in attribution.values.values()]
    arrays += [array for name, array in result.predictions.items() if name not in result.example_axes]
    return max((len(array) for array in arrays if array.ndim), default=1)


def _by_instance(result: InspectResult, rows: int) -> list[Any]:
    """Returns a mapping of outputs to rows for every instance; for a model with one output, only the rows.

    An output without an axis of examples, such as a loss, is the same for every instance.
    """
    whole = result.example_axes
    columns: list[Any] = [
        [numbers(array)] * rows if name in whole or not array.ndim else numbers(array)
        for name, array in result.predictions.items()
    ]
    if len(columns) == 1:
        return list(columns[0])
    return [dict(zip(result.predictions, row)) for row in zip(*columns)]


_BY_ROW = ("convergence_delta", "value_at_input", "value_at_baseline", "targets")


def _explanation(attribution: AttributionResult, row: int) -> dict[str, Any]:
    explanation: dict[str, Any] = {"method": attribution.method, "layer": attribution.layer}
    if attribution.error is not None:
        return explanation | {"error": document(attribution.error)}
    explanation["values"] = _of_row(attribution.values, row)
    if attribution.checks:
        explanation["verdict"] = str(outcome_of_row(attribution.checks, row).verdict)
    for name in _BY_ROW:
        array = getattr(attribution, name)
        if array is not None:
            explanation[name.removesuffix("s")] = numbers(array[row])
    for name in ("standard_errors", "references"):
        if by_input := getattr(attribution, name):
            explanation[name] = _of_row(by_input, row)
    if attribution.metrics:
        explanation["metrics"] = _of_row({metric.name: metric.values for metric in attribution.metrics}, row)
    if (tokens := attribution.tokens) is not None:
        by_token = {"ids": numbers(tokens.ids[row]), "values": numbers(tokens.values[row])}
        texts = {"texts": list(tokens.texts[row])} if tokens.texts else {}
        explanation["tokens"] = {"input": tokens.input, **texts, **by_token}
    return explanation


def _of_row(arrays: Mapping[str, Array], row: int) -> dict[str, Any]:
    """Returns a row of each array; None where an array has one for the whole batch."""
    return {name: numbers(array[row]) if row < len(array) else None for name, array in arrays.items()}


def _verdicts(attribution: AttributionResult) -> dict[str, Any]:
    return {
        "method": attribution.method,
        "layer": attribution.layer,
        "verdict": str(attribution.verdict),
        "checks": document(attribution.checks),
        "inputs_left_out": list(attribution.inputs_left_out),
    }


def as_npz(result: InspectResult) -> bytes:
    """Returns the arrays of ``result`` as an NPZ file; verdicts, and what a model wrote, by row as texts.

    Raises:
        CutawayError: that of an attribution, as a file has no place for it; ``INVALID_VALUE`` for an estimate.
    """
    if result.estimate is not None:
        raise error(Reason.INVALID_VALUE, f"an estimate has no arrays: {_ACCEPT_JSON}", "accept")
    moved = (each.attribution for attack in result.attacks for each in attack.attributions)
    for each in (*result.attributions, *moved):
        if (own := each.error) is not None:
            raise from_wire(own.code, own.reason, f"{own.message}; {_ACCEPT_JSON} for what did not fail", own.field)
    arrays = entries(result)
    file = io.BytesIO()
    write_npz(file, by_name([*arrays, *_verdicts_by_row(result, arrays), *text_entries(result)]))
    return file.getvalue()


_ACCEPT_JSON = "accept application/json"


def _verdicts_by_row(result: InspectResult, arrays: Sequence[Entry]) -> Iterator[Entry]:
    rows = range(_row_count(examples_first(result)))
    for owner in {entry.attribution.name: entry.attribution for entry in arrays if entry.attribution}.values():
        if checks := owner.result.checks:
            verdicts = np.array([outcome_of_row(checks, row).verdict.value for row in rows])
            yield Entry(verdicts, ArrayField("verdict", number=np.str_), attribution=owner)


def as_npy(result: InspectResult) -> bytes:
    """Returns the only prediction of ``result`` as an NPY file.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` if there is more than one array, or none.
    """
    if len(result.predictions) != 1 or len(tensors(result)) != 1 or result.attributions or result.generated:
        raise error(Reason.INVALID_VALUE, "the reply is not one array: accept application/x-npz", "accept")
    return npy(next(iter(result.predictions.values())))
