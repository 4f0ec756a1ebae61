"""The client makes a question of what people like to write, and refuses what no message can carry before it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import GatewayTransport
from cutaway.contract.requests import InspectRequest
from cutaway.contract.wire import requests as wire_requests

X = {"x": np.ones((2, 3), np.float32)}


def test_edits_become_part_of_the_question() -> None:
    """Edits travel in their order, with the wish to compare and the wish for no predictions."""
    # No arrays: from Python 3.13 on, == compares them too.
    edits = [ca.Zero("a"), ca.Scale("b", "grad_output", factor=2), ca.Add(op="b:relu#0", addend=1.5)]
    asked = build_request("m", X, edits=edits, compare=True, predictions=False)
    assert asked.edits == tuple(edits)
    assert asked.compare
    assert asked.omit_predictions
    plain = build_request("m", X)
    assert (plain.edits, plain.compare, plain.omit_predictions) == ((), False, False)


def test_a_parameter_is_captured_by_its_name_alone() -> None:
    """A parameter has no points: none are sent, though Python's default is the output."""
    message = wire_requests.encode(build_request("m", X, captures=[ca.Capture(parameter="w")]))
    assert (message.captures[0].parameter, list(message.captures[0].points)) == ("w", [])


def edited(edit: Any) -> InspectRequest:
    return InspectRequest("m", X, edits=(ca.Zero("m"), edit))


def captured(*where: Any, **wish: Any) -> InspectRequest:
    return InspectRequest("m", X, captures=(ca.Capture("m"), ca.Capture(*where, **wish)))


def about(target: Any) -> InspectRequest:
    return InspectRequest("m", X, target=target)


UNSENDABLE: dict[str, tuple[InspectRequest, str, str]] = {
    "negative call of an edit": (edited(ca.Zero("m", call=-1)), "edits[1].call", "-1; from 0 to 4294967295"),
    "negative call of a capture": (captured("m", call=-1), "captures[1].call", "-1; from 0 to 4294967295"),
    "call past 32 bits": (captured("m", call=2**32), "captures[1].call", "4294967296; from 0 to 4294967295"),
    "half a call": (captured("m", call=0.5), "captures[1].call", "0.5 is no whole number"),
    "negative row": (edited(ca.Zero("m", rows=(0, -2))), "edits[1].rows[1]", "-2; from 0 to 4294967295"),
    "one row": (edited(ca.Zero("m", rows=1)), "edits[1].rows", "1 is not several; put it in a tuple"),  # type: ignore[arg-type]
    "edit at several points": (
        edited(ca.Zero("m", ("input", "output"))), "edits[1].point",  # type: ignore[arg-type]
        "('input', 'output') is none of input, output, grad_input, grad_output"),
    "edit nowhere": (edited(ca.Zero()), "edits[1].where", "give exactly one of module, op; got 0"),
    "edit at two places": (
        edited(ca.Zero("m", op="m:relu#0")), "edits[1].where", "give exactly one of module, op; got 2"),
    "edit without a verb": (
        edited(ca.Edit("m")), "edits[1].kind", "is none of Scale, Add, Replace, Zero, Clamp, Mix"),
    "edit that is a name": (edited(ca.Scale("m", factor="a")), "edits[1].scale.factor", "'a' is no number"),  # type: ignore[arg-type]
    "factor past a double": (edited(ca.Scale("m", factor=10**400)), "edits[1].scale.factor", "is no number"),
    "addend that is no tensor": (edited(ca.Add("m", addend="a")), "edits[1].add.tensor", "str32 cannot be sent"),
    "complex replacement": (
        edited(ca.Replace("m", tensor=1j)), "edits[1].replace.tensor", "complex128 cannot be sent"),
    "negative permutation": (
        edited(ca.Mix("m", weight=0.5, permutation=(1, -1))), "edits[1].mix.permutation[1]",
        "-1; from 0 to 4294967295"),
    "capture nowhere": (captured(), "captures[1].where", "give exactly one of module, op, parameter; got 0"),
    "capture at two places": (
        captured("m", parameter="w"), "captures[1].where", "give exactly one of module, op, parameter; got 2"),
    "capture at no point": (captured("m", ()), "captures[1].points", "name at least one point"),
    "one slice": (
        captured("m", slices=ca.Slice(1)), "captures[1].slices", "is not several; put it in a tuple"),
    "axis past 32 bits": (
        captured("m", slices=(ca.Slice(0), ca.Slice(2**31))), "captures[1].slices[1].axis",
        "2147483648; from -2147483648 to 2147483647"),
    "start past 64 bits": (
        captured("m", slices=(ca.Slice(0, start=2**63),)), "captures[1].slices[0].start", "9223372036854775808; from"),
    "one axis": (
        captured("m", reduce=ca.Mean(1)), "captures[1].reduction.mean.axes",  # type: ignore[arg-type]
        "1 is not several; put it in a tuple"),
    "half an axis": (
        captured("m", reduce=ca.Norm((1, 1.5))), "captures[1].reduction.norm.axes[1]",  # type: ignore[arg-type]
        "1.5 is no whole number"),
    "negative number of elements": (
        captured("m", reduce=ca.TopElements(-1)), "captures[1].reduction.top_k.k", "-1; from 0 to 4294967295"),
    "reduction by name": (
        captured("m", reduce="mean"), "captures[1].reduction.kind", "'mean' is none of Mean, Max, Norm, TopElements"),
    "capture as integers": (
        captured("m", data_type="int8"), "captures[1].data_type",
        "'int8' is none of float16, bfloat16, float32, float64"),
    "class past 64 bits": (
        about(ca.ClassIndex((0, 2**63))), "target.class_index.indices[1]", "9223372036854775808; from"),
    "flat position": (
        about(ca.MultiIndex((1, 2))), "target.multi_index.indices[0].positions",  # type: ignore[arg-type]
        "1 is not several; put it in a tuple"),
    "negative k": (about(ca.TopK(-1)), "target.top_k.k", "-1; from 0 to 4294967295"),
    "unknown loss": (
        about(ca.CrossEntropy((0,), "none")), "target.cross_entropy.reduction",  # type: ignore[arg-type]
        "'none' is none of sum, mean"),
    "complex values": (
        about(ca.MeanSquaredError(np.zeros(1, complex))), "target.mean_squared_error.values",
        "complex128 cannot be sent"),
    "norm of no order": (about(ca.OutputNorm(None)), "target.norm.order", "None is no number"),  # type: ignore[arg-type]
    "one neuron": (
        about(ca.Neuron("m", 3)), "target.neuron.index.positions",  # type: ignore[arg-type]
        "3 is not several; put it in a tuple"),
    "tensors beside examples": (
        InspectRequest("m", X, raw=(ca.Raw(b"a"),)), "raw", "send tensors or raw bytes, not both"),
    "names of columns beside examples": (
        InspectRequest("m", raw=(ca.Raw(b"a"),), feature_names={"x": ("a",)}), "raw",
        "send tensors or raw bytes, not both"),
    "target of no kind": (about(ca.Target()), "target.kind", "is none of PredictedClass, ClassIndex"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSENDABLE)
def test_what_no_message_can_carry_is_refused(case: str) -> None:
    """What the contract's numbers, words and tensors cannot hold is refused before anything is sent, by its field."""
    asked, field, text = UNSENDABLE[case]
    for write in (wire_requests.encode, wire_requests.serialize):
        with pytest.raises(ca.InvalidArgument) as caught:
            write(asked)
        assert caught.value.field == field
        assert text in caught.value.message
        assert caught.value.reason == ("INPUT_DTYPE" if "cannot be sent" in text else "INVALID_VALUE")


HALF = "a\ud800"
"""A text that Python reads from JSON or from a file's name, and that UTF-8 cannot hold."""

HALVES: dict[str, Callable[[], InspectRequest]] = {
    "model": lambda: build_request(HALF, X),
    "captures[0].module": lambda: build_request("m", X, captures=[HALF]),
    "edits[0].module": lambda: build_request("m", X, edits=[ca.Zero(HALF)]),
    "attributions[0].layer_activation.layer": lambda: build_request(
        "m", X, attributions=[ca.LayerActivation(layer=HALF)]
    ),
    "attributions[0].integrated_gradients.path.baselines.by_input.a\ud800": lambda: build_request(
        "m", X, attributions=[ca.IntegratedGradients(baselines={HALF: X["x"]})]
    ),
    "tensors": lambda: build_request("m", {HALF: X["x"]}),
    "tensors.feature_names.x.names": lambda: InspectRequest("m", X, feature_names={"x": (HALF, "b", "c")}),
    "arguments.mode": lambda: build_request("m", X, arguments={"mode": HALF}),
    "inputs": lambda: build_request("m", HALF),
}


@pytest.mark.parametrize("field", HALVES)
def test_half_a_character_is_refused_where_it_is(field: str) -> None:
    """Before anything is sent, with a message that can be printed."""
    with pytest.raises(ca.InvalidArgument, match="is no character") as caught:
        GatewayTransport().inspect(HALVES[field]())
    assert (caught.value.reason, caught.value.field) == ("MALFORMED_REQUEST", field)
    assert str(caught.value).encode()


def test_losses_are_summed_or_averaged_by_word() -> None:
    """A plain word does for the enum."""
    message = wire_requests.encode(about(ca.CrossEntropy((0,), "mean")))  # type: ignore[arg-type]
    assert message == wire_requests.encode(about(ca.CrossEntropy((0,), ca.LossReduction.MEAN)))


@pytest.mark.parametrize("kind", ["int", "int8", "int64"])
def test_whole_numbers_of_any_kind_are_sent(kind: str) -> None:
    """Python's and numpy's integers, in tuples, lists and arrays."""
    numbers = np.array([2, 1]).astype(kind)
    for several in (numbers, numbers.tolist(), tuple(numbers)):
        edit = ca.Zero("m", call=several[0], rows=several)  # type: ignore[arg-type]
        message = wire_requests.encode(edited(edit)).edits[1]
        assert (message.call, list(message.rows)) == (2, [2, 1])


@pytest.mark.parametrize("address", [None, 50051, b"localhost:50051"])
def test_an_address_is_a_text(address: Any) -> None:
    with pytest.raises(ca.InvalidArgument, match=f"{address!r} is no text") as caught:
        ca.Client(address)
    assert caught.value.field == "address"


@pytest.mark.parametrize("model", [None, 3, ["net"], b"net"])
def test_a_model_is_a_text(model: Any) -> None:
    """In every call that names one."""
    client = ca.Client("127.0.0.1:1")
    for call in (
        lambda: client.inspect(model, X),
        lambda: client.inspect_stream(model, X),
        lambda: client.ask(InspectRequest(model, X)),
        lambda: client.get_model(model),
    ):
        with pytest.raises(ca.InvalidArgument, match=r"is no text|name a model that the server has") as caught:
            call()
        assert caught.value.field == "model"


@pytest.mark.parametrize("timeout", [math.nan, -1, -math.inf, "5", [5]])
def test_a_timeout_is_seconds_from_zero_on(timeout: Any) -> None:
    """That of a client, and of a call."""
    for call in (
        lambda: ca.Client("127.0.0.1:1", timeout=timeout),
        lambda: ca.Client("127.0.0.1:1").list_models(timeout=timeout),
    ):
        with pytest.raises(ca.InvalidArgument, match="is no number of seconds from 0 on") as caught:
            call()
        assert caught.value.field == "timeout"


@pytest.mark.parametrize("timeout", [math.inf, 9e9, 10**400, np.float32(9e9)])
def test_a_long_timeout_is_the_longest(timeout: Any) -> None:
    """A call fails for what is wrong: gRPC took such a deadline for one that had passed."""
    with pytest.raises(ca.Unavailable):
        ca.Client("127.0.0.1:1", timeout=timeout).list_models()
