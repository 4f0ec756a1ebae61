"""Parameters of attribution methods and their fields: a row for each field name, whichever methods have it.

A field that is not set leaves its parameter out, so that the default is the request's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from cutaway.errors import Reason, at, error
from cutaway.requests import AlphaOneBetaZero, Epsilon, Expectation, Gamma, LrpRule, RelevanceIdentity
from cutaway.tensors import as_array
from cutaway.v1 import attribution_pb2 as pb
from cutaway.wire import arrays, baselines, targets
from cutaway.wire.enums import QUADRATURES
from cutaway.wire.numbers import INT64, UINT32, at_least_one, real, whole, wholes
from cutaway.wire.oneof import Codec, OneOf


class Part(NamedTuple):
    """One field of a method's message.

    Attributes:
        encode: puts the request's parameters into the message's field.
        decode: the field's parameters, by name, for a request of a kind.
    """

    encode: Callable[[Any, Any], None]
    decode: Callable[[Any, type], dict[str, Any]]


def _plain(name: str, encode: Callable[[str, Any], Any]) -> Part:
    """A field of its own presence, or one whose 0 or False is the default."""

    def put(request: Any, message: Any) -> None:
        setattr(message, name, encode(name, getattr(request, name)))

    def take(message: Message, _: type) -> dict[str, Any]:
        field = message.DESCRIPTOR.fields_by_name[name]
        value = getattr(message, name)
        # Without a presence, 0 is the number that a field of a count has when it was never set; 0.0 is what it says.
        given = message.HasField(name) if field.has_presence else bool(value) or isinstance(value, float)
        return {name: value} if given else {}

    return Part(put, take)


def _count(field: str, given: Any) -> int:
    return at_least_one(field, whole(field, given, UINT32))


def _truth(_: str, given: Any) -> bool:
    return bool(given)


# Layers and neurons


def _encode_layer(request: Any, message: Any) -> None:
    message.layer = request.layer


def _decode_layer(message: Any, _: type) -> dict[str, Any]:
    if not message.layer:
        raise error(Reason.INVALID_VALUE, "name the layer to explain", "layer")
    return {"layer": message.layer}


def _encode_neuron(request: Any, message: Any) -> None:
    with at("neuron"):
        message.neuron.CopyFrom(targets.encode_neuron(request.neuron))


def _decode_neuron(message: Any, _: type) -> dict[str, Any]:
    with at("neuron"):
        return {"neuron": targets.decode_neuron(message.neuron)}


# Baselines and paths


def _encode_baselines(request: Any, message: Any) -> None:
    baselines.encode(request.baselines, message.baselines, isinstance(request, Expectation))


def _decode_baselines(message: Any, kind: type) -> dict[str, Any]:
    return {"baselines": baselines.decode(message.baselines, issubclass(kind, Expectation))}


def _encode_baseline(request: Any, message: Any) -> None:
    message.baseline.scalar = real("baseline.scalar", request.baseline)


def _decode_baseline(message: Any, _: type) -> dict[str, Any]:
    if not message.HasField("baseline"):
        return {}
    kind = message.baseline.WhichOneof("kind")
    if kind != "scalar":
        where = f"baseline.{kind}" if kind else "baseline"
        raise error(Reason.INVALID_VALUE, "the baseline of a layer's units is one scalar", where)
    return {"baseline": message.baseline.scalar}


def _encode_path(request: Any, message: Any) -> None:
    path = message.path
    with at("path"):
        path.n_steps = _count("n_steps", request.n_steps)
        path.quadrature = QUADRATURES.to_wire(request.quadrature, "quadrature")
        if request.max_delta is not None:
            path.max_delta = real("max_delta", request.max_delta)
        baselines.encode(request.baselines, path.baselines, False)


def _decode_path(message: Any, kind: type) -> dict[str, Any]:
    path = message.path
    with at("path"):
        found = _decode_baselines(path, kind)
        if path.n_steps:
            found["n_steps"] = path.n_steps
        if path.HasField("max_delta"):
            if not path.max_delta >= 0:  # nor NaN
                raise error(Reason.INVALID_VALUE, f"{path.max_delta}; a bound is from 0 up", "max_delta")
            found["max_delta"] = path.max_delta
        return {**found, "quadrature": QUADRATURES.to_plain(path.quadrature, "quadrature")}


# What is replaced


def _encode_masks(request: Any, message: Any) -> None:
    with at("masks.by_input"):
        for name, mask in request.masks.items():
            with at(name):
                message.masks.by_input[name].CopyFrom(arrays.encode(as_array(mask)))


def _decode_masks(message: Any, _: type) -> dict[str, Any]:
    found = {}
    with at("masks.by_input"):
        for name, mask in message.masks.by_input.items():
            with at(name):
                found[name] = arrays.decode(mask)
    return {"masks": found}


def _sizes(name: str) -> Part:
    def put(request: Any, message: Any) -> None:
        with at(name):
            for each, sizes in getattr(request, name).items():
                with at(each):
                    getattr(message, name)[each].CopyFrom(pb.AxisSizes(sizes=wholes("sizes", sizes, INT64)))

    return Part(
        put, lambda message, _: {name: {key: tuple(each.sizes) for key, each in getattr(message, name).items()}}
    )


# Rules of relevance


RULES: OneOf[LrpRule] = OneOf(
    "kind",
    "say which rule: epsilon, gamma, alpha_one_beta_zero or identity",
    {
        Epsilon: Codec(
            "epsilon",
            lambda rule: real("epsilon", rule.epsilon),
            lambda given: {"epsilon": given},
        ),
        Gamma: Codec("gamma", lambda rule: real("gamma", rule.gamma), lambda given: {"gamma": given}),
        AlphaOneBetaZero: Codec("alpha_one_beta_zero", lambda _: pb.AlphaOneBetaZero(), lambda _: {}),
        RelevanceIdentity: Codec("identity", lambda _: pb.RelevanceIdentity(), lambda _: {}),
    },
)


def _encode_rules(request: Any, message: Any) -> None:
    with at("rules"):
        for name, rule in request.rules.items():
            with at(name):
                RULES.encode(rule, message.rules[name])


def _decode_rules(message: Any, _: type) -> dict[str, Any]:
    found = {}
    with at("rules"):
        for name, rule in message.rules.items():
            with at(name):
                found[name] = RULES.decode(rule)
    return {"rules": found}


PARTS: Mapping[str, Part] = {
    "absolute": _plain("absolute", _truth),
    "relu": _plain("relu", _truth),
    "multiply_by_inputs": _plain("multiply_by_inputs", _truth),
    "n_samples": _plain("n_samples", _count),
    "stdev": _plain("stdev", real),
    "layer": Part(_encode_layer, _decode_layer),
    "neuron": Part(_encode_neuron, _decode_neuron),
    "path": Part(_encode_path, _decode_path),
    "baselines": Part(_encode_baselines, _decode_baselines),
    "baseline": Part(_encode_baseline, _decode_baseline),
    "masks": Part(_encode_masks, _decode_masks),
    "windows": _sizes("windows"),
    "strides": _sizes("strides"),
    "rules": Part(_encode_rules, _decode_rules),
}
"""A new parameter is a new row."""
