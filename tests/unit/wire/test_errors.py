"""Errors: one table, one way over the wire, and never a lost reason."""

from __future__ import annotations

import base64
import weakref
from collections.abc import Callable, Iterator
from tokenize import generate_tokens
from typing import Any
from urllib.parse import quote

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cutaway as ca
from cutaway.contract import errors
from cutaway.contract.errors import Code, CutawayError, Reason, at, error, from_wire
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.message_walk import MAX_TEXT
from cutaway.gateway import serve
from cutaway.server.worker.call import as_failure, raising_errors
from cutaway.v1 import worker_pb2

CLASSES = CutawayError.__subclasses__()
some = settings(deadline=None, max_examples=100)
texts = st.text(max_size=200)


def received(failure: CutawayError) -> CutawayError:
    """``failure`` as a client sees it that got it as a gRPC status."""
    return grpc_status.decode(
        failure.code, grpc_status.text(failure), [(grpc_status.DETAILS_KEY, grpc_status.encode(failure))]
    )


# The table.


def test_every_reason_has_a_meaning_of_its_own() -> None:
    """A reason's value is its name, and no two reasons mean the same."""
    assert all(reason.value == reason.name for reason in Reason)
    meanings = [reason.meaning for reason in Reason]
    assert all(meaning.endswith(".") for meaning in meanings)
    assert len(set(meanings)) == len(meanings)


def test_every_reason_has_a_class_to_catch() -> None:
    """Every row's status has exactly one class, and that is what is raised for the reason."""
    for reason in Reason:
        assert [type(error(reason, "x"))] == [kind for kind in CLASSES if kind.code == reason.code]


def test_each_status_has_a_class_of_its_own() -> None:
    """`except ca.NotFound` catches NOT_FOUND and nothing else; every class is public and in the tree at the top."""
    assert sorted(kind.code for kind in CLASSES) == sorted(Code)
    everything: list[type[CutawayError]] = [CutawayError, *CLASSES]
    for kind in everything:
        assert getattr(ca, kind.__name__) is kind
        assert kind.__name__ in (errors.__doc__ or "")


def test_code_numbers_are_those_of_grpc() -> None:
    """The codes are gRPC's own, by name and number."""
    assert all(grpc.StatusCode[code.name].value[0] == code.value for code in Code)


def test_error_reads_as_reason_field_message() -> None:
    """What a person sees in a traceback names all there is to know."""
    assert str(error(Reason.TARGET_RANGE, "10 of 10 classes", "target")) == "TARGET_RANGE [target]: 10 of 10 classes"
    assert str(error(Reason.INTERNAL, "oh")) == "INTERNAL: oh"


# Where: fields.


def test_at_composes_paths() -> None:
    """Each layer adds its own part of the path, from the inside out; an index needs no dot."""
    failure = error(Reason.INVALID_VALUE, "x")
    for outer, path in (
        ("[1]", "[1]"),
        ("points", "points[1]"),
        ("captures[0]", "captures[0].points[1]"),
        ("request", "request.captures[0].points[1]"),
    ):
        with pytest.raises(CutawayError) as caught, at(outer):
            raise failure
        assert caught.value is failure
        assert failure.field == path


def test_at_leaves_everything_else_alone() -> None:
    """Other exceptions pass as they are; so does what a block that ends well returns."""
    fault = KeyError("x")
    with pytest.raises(KeyError) as caught, at("field"):
        raise fault
    assert caught.value is fault
    with at("field"):
        pass


# Over the wire.


@some
@given(reason=st.sampled_from(Reason), message=texts, field=texts)
def test_status_keeps_reason_field_and_message(reason: Reason, message: str, field: str) -> None:
    """What the server raises is what the client catches, whatever the words are."""
    failure = error(reason, message, field)
    caught = received(failure)
    assert type(caught) is type(failure)
    assert (caught.reason, caught.message, caught.field) == (reason, message, field)


@some
@given(reason=st.sampled_from(Reason), message=texts, field=texts)
def test_worker_failure_keeps_reason_field_and_message(reason: Reason, message: str, field: str) -> None:
    """The same holds on the way from the worker to the gateway."""
    failure = error(reason, message, field)
    sent = worker_pb2.Failure.FromString(as_failure(failure).SerializeToString())
    caught = grpc_status.from_failure(sent)
    assert type(caught) is type(failure)
    assert vars(caught) == vars(failure)


def test_a_newer_servers_reason_is_kept() -> None:
    """A word that this client does not know yet still reaches the application, in the class of its status."""
    caught = received(from_wire(Code.NOT_FOUND, "MODEL_RETIRED", "gone"))
    assert isinstance(caught, ca.NotFound)
    assert (caught.reason, caught.message) == ("MODEL_RETIRED", "gone")


TRAILERS = 8 * 1024
"""What most gRPC stacks take for all trailing metadata of a call."""

LONG = {
    "ASCII": "x" * 100_000,
    "two bytes a character": "é" * 100_000,
    "three bytes a character": "層" * 100_000,
    "four bytes a character": "\N{MICROSCOPE}" * 100_000,
    "quotes": "'\"" * 50_000,
    "percent signs": "%" * 100_000,  # which travel as %25
    "controls": "\n\0" * 50_000,
}


PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def trailers_size(failure: CutawayError) -> int:
    """The bytes of ``failure``'s trailers: the text travels percent-encoded, the details in base64."""
    text = quote(grpc_status.text(failure), safe=PRINTABLE)
    names = f"grpc-message{grpc_status.DETAILS_KEY}grpc-status3"
    return len(names) + len(text) + len(base64.b64encode(grpc_status.encode(failure)))


@pytest.mark.parametrize("kind", LONG)
def test_long_words_do_not_burst_the_trailers(kind: str) -> None:
    """However long a name a caller makes up, the error arrives: its reason whole, its words cut, and cut visibly."""
    words = LONG[kind]
    for message, field in ((words, ""), ("short", words), (words, "short"), (words, words)):
        failure = error(Reason.MODULE_NOT_FOUND, message, field)
        assert trailers_size(failure) <= TRAILERS
        caught = received(failure)
        assert caught.reason == Reason.MODULE_NOT_FOUND
        for whole, cut in ((message, caught.message), (field, caught.field)):
            assert cut == whole or (cut.endswith("...") and len(cut) > 100 and whole.startswith(cut[:-3]))


@pytest.mark.parametrize("kind", LONG)
def test_long_name_is_answered_over_real_grpc(kind: str, door: ca.Client) -> None:
    """Through a real server, too, a made-up name gets its own error and not one about metadata; one that is longer than
    any name is refused unread."""
    longest, longer = LONG[kind][:MAX_TEXT], LONG[kind]
    for name, reason in ((longest, Reason.MODULE_NOT_FOUND), (longer, Reason.INVALID_VALUE)):
        with pytest.raises(ca.InvalidArgument) as caught:
            door.inspect("net", {"input": np.ones((1, 2), np.float32)}, captures=[name])
        assert (caught.value.reason, caught.value.field) == (reason, "captures[0].module")
    for name, reason in ((longest, Reason.MODEL_NOT_FOUND), (longer, Reason.INVALID_VALUE)):
        with pytest.raises(CutawayError) as missing:
            door.get_model(name)
        assert (missing.value.reason, missing.value.field) == (reason, "model")


@pytest.fixture(scope="module")
def door() -> Iterator[ca.Client]:
    """A client of a real gateway over a model of one layer."""
    with serve({"net": nn.Linear(2, 2)}) as server, ca.Client(server.address) as client:
        yield client


# Statuses that are not ours.

PLAIN = {
    grpc.StatusCode.UNAVAILABLE: Reason.SERVER_UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.REQUEST_TOO_LARGE,
    grpc.StatusCode.UNIMPLEMENTED: Reason.NOT_IMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.MALFORMED_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: Reason.TOKEN_REQUIRED,
    grpc.StatusCode.PERMISSION_DENIED: Reason.SCOPE_MISSING,
}
SAID = "what gRPC says"
TEXTS = {
    grpc.StatusCode.UNAVAILABLE: f"no server answers ({SAID})",
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        "the deadline passed before a reply arrived: give the call more time, or ask for less"
    ),
}


def test_plain_status_gets_a_reason() -> None:
    """A status that gRPC itself, or a proxy, made up still has a class, a reason and a text that fit."""
    for code in set(grpc.StatusCode) - {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}:
        number, _ = code.value
        caught = grpc_status.decode(number, SAID, [("x-proxy", "1")])
        assert caught.reason == PLAIN.get(code, Reason.INTERNAL)
        assert (caught.message, caught.field) == (TEXTS.get(code, SAID), "")
        assert type(caught) is next((kind for kind in CLASSES if kind.code == number), CutawayError)
    for code, reason in PLAIN.items():
        assert reason.code == code.value[0]


@pytest.mark.parametrize("transport", ["grpc", "connect"])
def test_nobody_there_is_worth_a_retry(transport: Any) -> None:
    """A client that reaches no server says so, and where, with a reason that the table calls worth a retry."""
    with ca.Client("127.0.0.1:1", transport=transport) as client, pytest.raises(ca.Unavailable) as caught:
        client.list_models()
    assert caught.value.reason == Reason.SERVER_UNREACHABLE
    assert caught.value.message.endswith(" at 127.0.0.1:1")
    assert Reason.SERVER_UNREACHABLE.retryable


def test_a_server_that_ends_is_worth_a_retry() -> None:
    """A call that a server took and will not answer, because it ends, is as if nobody had been there."""
    caught = grpc_status.decode(grpc.StatusCode.CANCELLED.value[0], "CANCELLED", [])
    assert (type(caught), caught.reason) == (ca.Unavailable, Reason.SERVER_UNREACHABLE)


@some
@given(st.binary(max_size=60))
def test_garbage_details_leave_the_plain_status(details: bytes) -> None:
    """Bytes that are no `google.rpc.Status` cost nothing but the details."""
    assert _same(grpc_status.decode(Code.UNAVAILABLE, SAID, [(grpc_status.DETAILS_KEY, details)]), Code.UNAVAILABLE)


def _same(caught: CutawayError, code: Code) -> bool:
    """Whether ``caught`` is what the plain status alone would have been."""
    plain = grpc_status.decode(code, SAID, [])
    return type(caught) is type(plain) and vars(caught) == vars(plain)


def test_status_of_somebody_else_is_not_called_our_fault() -> None:
    """A proxy's own status means what its code means, whatever details it has: it is no bug of the server's, nor does
    a reason of another domain become one of ours."""
    details: tuple[Message, ...] = (
        error_details_pb2.RetryInfo(),
        error_details_pb2.ErrorInfo(reason="MODEL_NOT_FOUND", domain="googleapis.com"),
    )
    for code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED):
        for detail in (None, *details):
            foreign = status_pb2.Status(code=code, message=SAID)
            if detail is not None:
                foreign.details.add().Pack(detail)
            caught = grpc_status.decode(code, SAID, [(grpc_status.DETAILS_KEY, foreign.SerializeToString())])
            assert _same(caught, code), (caught, detail)


def _nested() -> None:
    _nested()


@pytest.mark.parametrize(
    ("cause", "reason", "message"),
    [
        (lambda: bytes(1 << 60), Reason.OUT_OF_MEMORY, "there is not enough memory for this; send less at once"),
        ("a\ud800b".encode, Reason.MALFORMED_REQUEST, "a text has '\\ud800', which is no character"),
        (_nested, Reason.MALFORMED_REQUEST, "it is nested too deeply"),
        (lambda: list(generate_tokens(iter(["("]).__next__)), Reason.MALFORMED_REQUEST, "a text cannot be parsed: "),
    ],
)
def test_exceptions_that_a_request_causes_have_words(cause: Callable[[], Any], reason: Reason, message: str) -> None:
    """They are no errors inside the server."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        cause()
    failure = errors.of_exception(caught.value)
    assert failure is not None
    assert (failure.reason, failure.message[: len(message)]) == (reason, message)


def test_a_text_that_is_no_unicode_can_be_told() -> None:
    """In the message and in the field."""
    failure = received(error(Reason.INVALID_VALUE, "no \ud800", "a.\ud800"))
    assert (failure.message, failure.field) == (r"no \ud800", r"a.\ud800")
    assert as_failure(error(Reason.MODEL_FAILED, "no \ud800")).message == r"no \ud800"


def test_a_failure_keeps_nothing_of_what_failed() -> None:
    """While somebody holds it, the tensors in the frames of what failed are free, also those of its context."""
    kept: list[weakref.ref[Any]] = []

    def fail() -> None:
        array = np.zeros(3)
        kept.append(weakref.ref(array))
        raise error(Reason.MODEL_FAILED, "x")

    try:
        try:
            fail()
        finally:
            fail()
    except CutawayError as failure:
        held = failure
    assert all(array() is not None for array in kept)
    as_failure(held)
    assert all(array() is None for array in kept)


def test_an_error_of_this_process_is_raised_as_it_is() -> None:
    """It is not its own cause, a circle that keeps the tensors of its frames; another exception is the error's."""
    for raised in (error(Reason.MODEL_FAILED, "x"), ValueError("x")):
        with pytest.raises(CutawayError) as caught, raising_errors():
            raise raised
        assert (caught.value is raised, caught.value.__cause__) in ((True, None), (False, raised))
