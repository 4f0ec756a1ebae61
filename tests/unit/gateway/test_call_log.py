"""The log of calls: all that failed, and of the others as many as a second may have."""

from __future__ import annotations

import json

import pytest

from cutaway.server.observability import logging
from cutaway.server.observability.call_watch import CallRecord

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
