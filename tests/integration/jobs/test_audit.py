"""The worked audit of docs/batch.md, and what it finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cutaway.jobs import Job, read, run
from examples.digits import audit
from examples.digits.audit import WRONG, mislabelled, on_ink, prepare, suspects, weakly_explained
from tests.support.digits import package_digits


@pytest.mark.slow
def test_the_audit_finds_every_label_that_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,797 digits, the 24 that the model contradicts most surely are the 24 whose label was changed; and the least
    share of saliency on ink is what a look at the arrays says."""
    monkeypatch.setattr(audit, "package", package_digits)
    changed = prepare(tmp_path)
    spec = tmp_path / "job.yaml"
    spec.write_text(spec.read_text().replace("n_steps: 64", "n_steps: 4"))  # values are held elsewhere
    run(Job.load(spec))
    results = read(tmp_path / "explained")
    assert results.rows == 1797
    assert sorted(each.name for each in mislabelled(results)[:WRONG]) == changed
    share = on_ink(results["input:image"], results["attribution:saliency:image"])
    least = weakly_explained(results, 3)
    rows = [int(each.name.removeprefix("digit-")) for each in least]
    assert [each.number for each in least] == sorted(share[rows].tolist())
    right = results["prediction"] == results["label"]
    assert least[0].number == np.min(share[right])
    suspects(tmp_path)
