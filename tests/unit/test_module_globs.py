"""Globs over module names: what they match, and that no pattern takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine.model.module_tree import glob_matcher


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("conv*", ["conv", "conv1"], ["conv.1", "xconv", ""]),
        ("block.?", ["block.0"], ["block.10", "block..", "block."]),
        ("**", ["", "a", "a.b"], []),
        ("**.relu", ["a.relu", "a.b.relu"], ["relu", "a.relu.b"]),
        ("a.*.c", ["a.b.c"], ["a.b.b.c", "a.c"]),
        ("***", ["", "a", "a.b"], []),
        ("**:relu#*", ["a.b:relu#0", ":relu#12"], ["a.b:relu6#0"]),
        ("a+(b|c)*", ["a+(b|c)d"], ["aab"]),
        ("**:*#*", ["a\nb:relu#0"], ["a\nb"]),
        ("a?b*", ["a\nb\n"], ["ab"]),
    ],
)
def test_what_a_glob_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = glob_matcher(pattern)
    assert all(map(matches, matching))
    assert not any(map(matches, others))


@given(st.text("ab.*?", max_size=8), st.text("ab.", max_size=8))
def test_a_glob_is_the_regular_expression_that_it_says(pattern: str, name: str) -> None:
    """Python's own engine, slow as it is, says the same of short ones."""
    expression = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", r"[^.]*").replace(r"\?", "[^.]")
    assert glob_matcher(pattern)(name) is (re.fullmatch(expression, name) is not None)


@pytest.mark.parametrize("pattern", ["**" * 24 + "!", "*a" * 400, "**a" * 300, "a*" * 400 + "!", "?*" * 400])
def test_no_pattern_takes_long(pattern: str) -> None:
    """Each of these takes an engine that tries one way after another longer than anybody waits."""
    assert not glob_matcher(pattern)("a" * 5000 + ".b")
