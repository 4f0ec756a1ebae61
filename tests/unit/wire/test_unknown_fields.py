"""The strict contract: every field is served; an unknown field or enum value is an error that names it."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import EnumDescriptor

from cutaway.contract.errors import InvalidArgument, Reason
from cutaway.contract.wire import requests as wire_requests
from cutaway.v1 import inspection_pb2
from tests.support.contract_fields import (
    KEY,
    PLACES,
    SERVED_PLACES,
    completed,
    entered,
    message_type,
    put,
    reached,
    refusal,
    values,
)
from tests.support.wire_strategies import canonical


def test_the_walk_sees_the_contract() -> None:
    """The walk below is no empty promise: it reaches fields deep inside."""
    found = {place.path() for place in PLACES}
    assert "attributions[0].integrated_gradients.path.quadrature" in found
    assert f"attributions[0].integrated_gradients.path.baselines.by_input.{KEY}.tensor.data" in found
    assert f"attributions[0].lrp.rules.{KEY}.epsilon" in found
    assert len(PLACES) > 300


def test_baseline_that_a_method_does_not_take_is_refused_by_name() -> None:
    """Methods share the message of a baseline, and each takes some of its kinds: any other, and all that is in it, is
    refused by the kind's name, and never left out or read as something else."""
    beyond = {place.path(): place for place in PLACES if place.misplaced is not None}
    for kind in (
        "deep_lift_shap.baselines.by_input.{}.token_id",
        "feature_ablation.baselines.by_input.{}.distribution",
    ):
        assert f"attributions[0].{kind.format(KEY)}" in beyond
    assert "attributions[0].layer_feature_ablation.baseline.tensor.shape" in beyond
    for place in beyond.values():
        for value in values(place.field):
            message = inspection_pb2.InspectRequest()
            put(message, place, value)
            completed(message)
            failure = refusal(message)
            assert isinstance(failure, InvalidArgument), (place.path(), value)
            assert place.misplaced is not None
            assert (failure.reason, failure.field) == (Reason.INVALID_VALUE, place.misplaced.path())


def test_served_field_is_heard() -> None:
    """A field that is served is not refused, and changes what the worker is asked: it is not left out either."""
    for place in SERVED_PLACES:
        if message_type(place.field) is not None:
            message = inspection_pb2.InspectRequest()
            put(message, place)
            completed(message)
            assert refusal(message) is None, place.path()
            continue
        without = inspection_pb2.InspectRequest()
        reached(without, place)
        heard = []
        for value in values(place.field):
            message = inspection_pb2.InspectRequest()
            put(message, place, value)
            heard.append(_decoded(message) != _decoded(without))
        assert any(heard), place.path()


def _decoded(message: inspection_pb2.InspectRequest) -> Any:
    whole = inspection_pb2.InspectRequest()
    whole.CopyFrom(message)
    completed(whole)
    return canonical(wire_requests.decode(whole.SerializeToString()))


UNKNOWN_NUMBER = 127
UNKNOWN = b"\xf8\x07\x01"  # field 127, a varint, 1


def test_field_of_a_newer_client_is_refused() -> None:
    """A field number that this contract does not have is refused wherever it is, with its message and number."""
    levels = [place for place in SERVED_PLACES if message_type(place.field) is not None]
    assert len(levels) > 20
    for place in [None, *levels]:
        message = inspection_pb2.InspectRequest()
        there: Any = message if place is None else entered(reached(message, place), place.field)
        there.MergeFromString(UNKNOWN)
        failure = refusal(message)
        assert isinstance(failure, InvalidArgument), place
        assert (failure.reason, failure.field) == (Reason.UNKNOWN_FIELD, place.path(last=True) if place else "")
        assert failure.message == (
            f"{there.DESCRIPTOR.name} has no field number {UNKNOWN_NUMBER}; is the client newer than the server?"
        )


def test_enum_member_of_a_newer_client_is_refused() -> None:
    """A number that an enum does not have is never taken for another: the error names the field and what is allowed."""
    tried = {}
    for place in SERVED_PLACES:
        kind: EnumDescriptor | None = place.field.enum_type
        if kind is None:
            continue
        for number in (kind.values[-1].number + 1, -1, 2**31 - 1):
            message = inspection_pb2.InspectRequest()
            put(message, place, number)
            completed(message)
            failure = refusal(message)
            assert isinstance(failure, InvalidArgument), (place.path(), number)
            assert failure.field == place.path(last=True)
            of_tensor = place.path().endswith(".data_type") and place.field.containing_type.name == "Tensor"
            assert failure.reason == (Reason.INPUT_DTYPE if of_tensor else Reason.INVALID_VALUE)
            assert f"{number} is none of" in failure.message
            names = [value.name for value in kind.values if value.number]
            if place.path() in ("captures[0].data_type", "options.reply_data_type"):
                names = [name for name in names if "FLOAT" in name]
            assert failure.message.endswith(", ".join(names))
        tried[kind.name] = place
    assert set(tried) == {
        "AttackNorm",
        "SearchMode",
        "HookPoint",
        "CheckMode",
        "ConceptClassifier",
        "InfluenceMethod",
        "VectorNorm",
        "Quadrature",
        "DataType",
        "Imputation",
        "LossReduction",
        "Combination",
        "Compression",
    }
