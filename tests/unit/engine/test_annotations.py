"""Annotations of the engine say what is true: types, and the shapes of tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cutaway.engine.methods.captum_call import TABLE


@pytest.mark.slow
def test_every_method_keeps_the_shapes_that_its_functions_state() -> None:
    """Each call of a function of passes, references and methods is checked, while every method runs and is compared
    with its reference; a wrong shape would be an error there."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.checked_annotations"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.split()) == {method.__name__ for method in TABLE}
