"""Captum's own test configuration over gRPC, as `make captum-config` runs it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.matrix.captum_config import AT_LEAST, outcomes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_case_is_captums() -> None:
    """None is wrong, and few are refused."""
    found = {case.name: outcome for case, outcome in outcomes().items()}
    assert {name: outcome for name, outcome in found.items() if outcome.startswith("wrong")} == {}
    counts = Counter(found.values())
    assert counts["exact"] + counts["equal"] >= AT_LEAST
