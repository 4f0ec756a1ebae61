"""Random models, random captures, random edits: the engine says what a slow reference says.

The reference interprets the model itself, does every edit by hand and cuts the graph wherever a gradient is looked at;
it imports nothing of the engine. `make fuzz` runs the same with new examples.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.asking import Question, questions
from tests.fuzz.comparing import check
from tests.fuzz.drawing import graphs
from tests.fuzz.graphs import Graph, build, called, listed
from tests.fuzz.interpreter import Interpreter

CI = settings(
    deadline=None,  # the machine may be busy
    derandomize=True,  # the same examples everywhere
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate, Phase.shrink],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny, and threads that wait for each other cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@settings(CI, max_examples=125)
@given(questions())
def test_whatever_is_asked_the_answer_is_the_references(question: Question) -> None:
    """Predictions with and without edits, every capture of every call, every gradient and every warning are those of
    the reference to 1e-9; what cannot be answered has one of the expected reasons; and the model is as it was."""
    check(question)


@settings(CI, max_examples=50)
@given(graphs())
def test_the_reference_computes_what_the_model_computes(graph: Graph) -> None:
    """Without captures and edits, the interpreter and the module are the same function of the same weights."""
    model, inputs = build(graph).eval(), graph.inputs()
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    expected = Interpreter(graph, weights).run(inputs)
    found = listed(called(model, graph, {name: each.clone() for name, each in inputs.items()}))
    assert len(found) == len(expected)
    for each, name in zip(found, expected):
        torch.testing.assert_close(each, expected[name], rtol=1e-12, atol=1e-12)


def test_the_reference_knows_nothing_of_the_engine() -> None:
    """Of what the comparison is made of, only the comparison itself imports the engine."""
    importers = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            importers |= {path.name for name in names if name.startswith("cutaway.engine")}
    assert importers == {"comparing.py"}
