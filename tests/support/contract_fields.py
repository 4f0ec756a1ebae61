"""A walk over the contract itself: every field that InspectRequest leads to, and how to set it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

import zstandard
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cutaway.contract.errors import CutawayError
from cutaway.contract.wire import requests as wire_requests
from cutaway.v1 import inspection_pb2, tensor_pb2


class Place(NamedTuple):
    """A field of the contract, by the fields that lead to it from InspectRequest; itself the last."""

    fields: tuple[FieldDescriptor, ...]

    @property
    def field(self) -> FieldDescriptor:
        return self.fields[-1]

    def path(self, *, last: bool = False) -> str:
        """How an error names it; ``last`` says that an element of it is meant, and not the whole."""
        words = [f".{field.name}" + _step(field) for field in self.fields[:-1]]
        return "".join([*words, f".{self.field.name}" + (_step(self.field) if last else "")])[1:]

    @property
    def misplaced(self) -> Place | None:
        """The field on the way here that the method refuses: a kind of baseline that other methods take."""
        for depth, field in enumerate(self.fields, 1):
            if field.containing_type.name == "Baseline":
                methods = {above.containing_type.name for above in self.fields[:depth]}
                return None if field.name in baselines_of(methods) else Place(self.fields[:depth])
        return None


def baselines_of(messages: Set[str]) -> Set[str]:
    """The kinds of baseline that are taken inside of ``messages``."""
    if messages & OF_DISTRIBUTIONS:
        return {"distribution"}
    if "LayerFeatureAblation" in messages:
        return {"scalar"}
    return {"scalar", "tensor", "token_id", "ordinary_token_id"}


OF_DISTRIBUTIONS = {f"{where}{what}Shap" for where in ("", "Layer", "Neuron") for what in ("DeepLift", "Gradient")}
"""The methods whose baselines are samples of a distribution."""


def _step(field: FieldDescriptor) -> str:
    return f".{KEY}" if is_map(field) else "[0]" if field.is_repeated else ""


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def message_type(field: FieldDescriptor) -> Descriptor | None:
    """The type of the field's messages; a map's are its values."""
    found = field.message_type.fields_by_name["value"].message_type if is_map(field) else field.message_type
    return found  # None for a scalar, whatever the stubs say


REQUIRED: dict[str, dict[str, Any]] = {
    "ClassLabel": {"labels": "label"},
    "InspectRequest": {"model": "model", "tensors": None, "edits": None},  # edits, for `compare`
    "RawInputs": {"examples": None},
    "ClassIndex": {"indices": 0},
    "Contrast": {"target": None, "other": None},
    "LogProbability": {"target": None},
    "SequenceLogProbability": {"texts": " a text"},
    "Generate": {"max_new_tokens": 3},
    "Sweep": {"module": "module"},
    "Direct": {"modules": "module", "norm": "norm"},
    "AttackRequest": {"fgsm": None},
    "MinParamPerturbation": {"parameter": "epsilon", "upper": 1.0, "step": 0.1},
    "Tcav": {"layers": "module"},
    "Influence": {"training": None},
    "Project": {"module": "module"},
    "AddVector": {"vector": None},
    "ClampDirection": {"vector": None, "maximum": 1.0},
    "MatrixRow": {"matrix": "matrix"},
    "SwapDirections": {"vector": None, "other": None},
    "MultiIndex": {"indices": None},
    "TopK": {"k": 2},
    "CrossEntropyLoss": {"labels": 0},
    "MeanSquaredErrorLoss": {"values": None},
    "Cotangent": {"tensor": None},
    "Neuron": {"module": "module"},
    "Argument": {"text": "a text"},
    "CaptureRequest": {"module": "module"},
    "Reduction": {"mean": None},
    "TokenPositions": {"tokens": None},
    "TokenPosition": {"position": 2},
    "AxisReduction": {"axes": 2},
    "TopElements": {"k": 2},
    "Edit": {"module": "module", "point": 1, "zero": None},
    "Add": {"scalar": 1.0},
    "Replace": {"tensor": None},
    "Clamp": {"minimum": 0.0},
    "AttributionRequest": {"saliency": None},
    "LrpRule": {"identity": None},
    "MetricRequest": {"infidelity": None},
    "Tensor": {"data_type": tensor_pb2.DATA_TYPE_INT8},
}
"""What a message cannot do without, and a value for it that `values` does not try; None is an empty message."""


def _complete(message: Any, name: str, value: Any) -> None:
    """Set the field ``name``, unless it is set, or another of its ``oneof``."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) is not None:
        return
    there = getattr(message, name)
    if field.is_repeated:
        if not len(there):
            there.add() if value is None else there.append(value)
    elif value is None:
        there.SetInParent()
    elif not there:
        setattr(message, name, value)


def _places(message: Descriptor, above: tuple[FieldDescriptor, ...] = ()) -> Iterator[Place]:
    for field in message.fields:
        yield Place((*above, field))
        below = message_type(field)
        if below is not None and all(below is not message_type(each) for each in above):  # a target of a target
            yield from _places(below, (*above, field))


KEY = "naïve.key"
PLACES = list(_places(inspection_pb2.InspectRequest.DESCRIPTOR))
SERVED_PLACES = [place for place in PLACES if place.misplaced is None]
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: [True],
    FieldDescriptor.CPPTYPE_STRING: ["a"],  # and bytes, which protobuf counts here
    FieldDescriptor.CPPTYPE_DOUBLE: [0.5],
}


def reached(message: Message, place: Place) -> Any:
    """The message that holds ``place``'s field; what lies on the way is set."""
    for field in place.fields[:-1]:
        message = entered(message, field)
    return message


def entered(message: Any, field: FieldDescriptor) -> Any:
    """The message in ``field``, a first one; set, even if empty."""
    within = getattr(message, field.name)
    if is_map(field):
        return within[KEY]
    if field.is_repeated:
        return within[0] if len(within) else within.add()
    within.SetInParent()
    return within


def values(field: FieldDescriptor) -> list[Any]:
    """Values to try a scalar field with; none of them is the one that is not sent at all."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"a"]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and field.has_presence:
        return [True, False]  # either may be the default
    if field.enum_type is tensor_pb2.DataType.DESCRIPTOR:
        return [tensor_pb2.DATA_TYPE_FLOAT16]  # the only kind that every such field takes is a floating one
    if field.enum_type is not None:
        return [field.enum_type.values[-1].number]
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 and field.has_presence:
        return [1, 2]  # one of them may be the default
    return VALUES.get(field.cpp_type, [1])


def put(message: Message, place: Place, value: Any = None) -> None:
    """Set ``place``'s field in ``message``, and what lies on the way."""
    holder = reached(message, place)
    if message_type(place.field) is not None:
        entered(holder, place.field)
    elif is_map(place.field):
        getattr(holder, place.field.name)[KEY] = value
    elif place.field.is_repeated:
        getattr(holder, place.field.name).append(value)
    else:
        setattr(holder, place.field.name, value)


def asked(**fields: Any) -> inspection_pb2.InspectRequest:
    """A request that is in order, but for ``fields``."""
    whole: dict[str, Any] = {"model": "m", "tensors": {"by_name": {"x": {"data_type": 3, "data": bytes(4)}}}}
    return inspection_pb2.InspectRequest(**(whole | fields))


def refusal(request: Message | bytes) -> CutawayError | None:
    """The error that ``request`` is answered with; any other exception passes, and fails the test."""
    try:
        wire_requests.decode(request if isinstance(request, bytes) else request.SerializeToString())
    except CutawayError as failure:
        return failure
    return None


def completed(message: Any, above: Set[str] = frozenset()) -> None:
    """Add what the contract requires beside the field that is tried; ``above`` are the messages it lies in."""
    for name, value in _required(message.DESCRIPTOR.name, above).items():
        _complete(message, name, value)
    if message.DESCRIPTOR.name == "Tensor":
        size = 2 if message.data_type == tensor_pb2.DATA_TYPE_FLOAT16 else 1
        if message.compression == tensor_pb2.COMPRESSION_ZSTD:  # other numbers, so that it shows whether it is heard
            message.data = zstandard.compress(bytes([1] * size))
        message.data = message.data or bytes(size)
    if "layer" in message.DESCRIPTOR.fields_by_name:
        message.layer = message.layer or "layer"
    neuron = message.DESCRIPTOR.fields_by_name.get("neuron")
    if neuron is not None and neuron.containing_oneof is None:
        message.neuron.SetInParent()
    for field, value in message.ListFields():
        if message_type(field) is not None:
            for each in value.values() if is_map(field) else value if field.is_repeated else [value]:
                completed(each, {*above, message.DESCRIPTOR.name})


def _required(message: str, above: Set[str]) -> dict[str, Any]:
    if message == "Baseline":
        return {"scalar": 0.0} if "scalar" in baselines_of(above) else {"distribution": None}
    return REQUIRED.get(message, {})
