"""A section of a job may be its main value alone; anything else is told what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cutaway as ca
from cutaway.jobs.spec import Job

LONG = """
model: {archive: net.mar}
data: {path: table.csv}
inputs: {x: {columns: features}}
id: {column: number}
label: {column: kind}
target: label
output: {folder: out}
"""

SHORT = """
model: net.mar
data: table.csv
inputs: {x: {columns: features}}
id: number
label: kind
target: label
output: out
"""


def load(text: str, directory: Path) -> Job:
    (directory / "job.yaml").write_text(text)
    return Job.load(directory / "job.yaml")


def test_a_text_is_the_main_value_of_a_section(tmp_path: Path) -> None:
    """Paths are relative to the file, as in the long form."""
    short = load(SHORT, tmp_path)
    assert short == load(LONG, tmp_path)
    assert short.model.archive == tmp_path / "net.mar"


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (("output: out", "output: [out]"), "output", "must be a mapping of names to values, or the folder alone"),
        (("data: table.csv", "data: 3"), "data", "must be a mapping of names to values, or the path alone"),
        (("target: label", "request: Saliency"), "request", "must be a mapping of names to values"),
    ],
)
def test_other_values_are_refused(change: tuple[Any, Any], field: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ca.InvalidArgument) as caught:
        load(SHORT.replace(*change), tmp_path)
    assert (caught.value.field, caught.value.message) == (field, message)
