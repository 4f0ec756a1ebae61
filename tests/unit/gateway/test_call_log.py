"""Reports of calls: each once; and their log: all that failed, and of the others as many as a second may have."""

from __future__ import annotations

import asyncio
import json

import pytest

import cutaway as ca
from cutaway.contract.errors import Reason, error
from cutaway.server.auth.tokens import authenticator
from cutaway.server.backends.backend import Backend
from cutaway.server.lifecycle.gateway_server import Observers
from cutaway.server.lifecycle.in_process import LocalWorkers
from cutaway.server.model_store import Catalog
from cutaway.server.observability import logging
from cutaway.server.observability.call_watch import CallRecord, CallWatch
from cutaway.server.rpc.servicer import Servicer
from cutaway.server.rpc.status import TranslatedCall
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2
from tests.support.prometheus import read

MOST = 3


def test_answered_calls_are_left_out_and_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is logged however many calls there are, and says how many were left out before it."""
    now = 7.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    log = logging.CallLog("json", MOST)
    for code in ["OK"] * 5 + ["INTERNAL"] * 2:
        log.call_ended(CallRecord("Inspect", "", "", code=code))
    now = 8.0
    log.call_ended(CallRecord("Inspect", "", ""))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["code"], line.get("left_out_before", 0)) for line in lines] == [
        *[("OK", 0)] * MOST,
        ("INTERNAL", 2),
        ("INTERNAL", 0),
        ("OK", 0),
    ]


class Reports(list[str]):
    """An observer that keeps the reasons of calls."""

    def call_started(self, call: CallRecord) -> None:
        """Keeps nothing yet."""

    def call_ended(self, call: CallRecord) -> None:
        self.append(call.reason)


@pytest.mark.anyio
@pytest.mark.parametrize("reason", [Reason.MALFORMED_REQUEST, Reason.MODEL_NOT_FOUND])
async def test_an_error_of_another_protocol_is_reported_once(reason: Reason) -> None:
    """Be it one of reading a request, before the call is known, or one of the call itself."""
    reports, settings = Reports(), Settings()
    backend = Backend(LocalWorkers([]), Catalog([]), settings)
    servicer = Servicer(backend, settings, authenticator(None), CallWatch([reports]))
    call = TranslatedCall([], "here")
    servicer.admit(())

    async def ask() -> None:
        async with servicer.reporting("Inspect", call):
            if reason == Reason.MALFORMED_REQUEST:
                raise error(reason, "no request")
            await servicer.call("Inspect", inspection_pb2.InspectRequest(model="none").SerializeToString(), call)

    with pytest.raises(ca.CutawayError) as caught:
        await ask()
    assert caught.value.reason == reason
    await asyncio.sleep(0)  # it is reported behind the reply
    assert reports == [reason]


@pytest.mark.anyio
async def test_metrics_count_every_call_that_was_answered() -> None:
    """Also one whose report waits behind its reply: the loop runs nothing while the metrics are read."""
    settings = Settings(metrics_address="127.0.0.1:0")
    backend = Backend(LocalWorkers([]), Catalog([]), settings)
    observers = Observers(backend.batchers, settings)
    observers.open()
    servicer = Servicer(backend, settings, authenticator(None), observers.watch)
    with pytest.raises(ca.CutawayError):
        async with servicer.reporting("Inspect", TranslatedCall([], "here")):
            raise error(Reason.MALFORMED_REQUEST, "no request")
    labels = {"method": "Inspect", "code": "INVALID_ARGUMENT", "reason": "MALFORMED_REQUEST"}
    counted = read(observers.address, "cutaway_calls_total", **labels)
    await observers.close()
    assert counted == 1
