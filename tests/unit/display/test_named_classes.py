"""Classes have their labels wherever a view names them, and a prediction that is no number is no class."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from rich.console import Console
from torch import nn

import cutaway as ca
from cutaway.adapters import TensorAdapter
from cutaway.contract.results import ClassPrediction, Timings
from cutaway.contract.results.comparison import compare
from cutaway.views.inspection import Inspection
from cutaway.views.tables import result_tables
from tests.support.made_results import numbers
from tests.support.worker_calls import ask as worker_ask
from tests.support.worker_calls import worker

LABELS = ("refused", "granted", "manual")


def answered(classes: int = 3) -> Inspection:
    """What a model of ``classes`` classes with labels answers about two rows, with a counterfactual."""
    torch.manual_seed(0)
    labels = LABELS if classes == 3 else tuple(f"class number {index}" for index in range(classes))
    served = worker(TensorAdapter(nn.Linear(3, classes).eval(), labels=labels))
    asked: dict[str, Any] = {
        "attributions": (ca.Saliency(),),
        "counterfactual": ca.Counterfactual(columns={"input[0]": ca.Column(-9, 9)}),
    }
    result = worker_ask(served, {"input": torch.from_numpy(numbers(2, 3))}, **asked)
    return Inspection.of(result, ca.InspectRequest("model"))


def in_a_terminal(result: Inspection) -> str:
    """What the command prints."""
    console = Console(file=(file := StringIO()), width=200)
    console.print(*result_tables(result))
    return file.getvalue()


def test_every_view_names_classes_by_their_labels() -> None:
    """Of few classes all: below the bars, as explained, and those that changes lead to."""
    result = answered()
    assert result.labels == dict(enumerate(LABELS))
    words = {text.get_text() for text in result.plot().findobj(Text)}
    assert {*LABELS} <= words
    page = result._repr_html_()
    assert all(f">{label}</span>" in page for label in LABELS)
    assert result.targets is not None
    targets = [line.split()[4] for line in in_a_terminal(result).splitlines() if "% " in line]
    assert targets == [LABELS[index] for index in result.targets]
    for shown in (str(result), page, in_a_terminal(result), *words):
        assert "class 0" not in shown
        assert "class class" not in shown


@pytest.mark.parametrize(("classes", "all_of_them"), [(32, True), (33, False)])
def test_up_to_thirty_two_classes_have_all_labels(classes: int, all_of_them: bool) -> None:
    """As docs/results.md says; of more, the two rows name at most twenty and those that changes lead to."""
    assert (len(answered(classes).labels) == classes) == all_of_them


def test_many_classes_have_the_labels_that_are_named() -> None:
    """The predicted ones, those that changes lead to, and the ten likeliest of each row; no others travel."""
    result = answered(1000)
    (scores,) = result.predictions.values()
    named = set(np.argsort(-scores, axis=1)[:, :10].ravel().tolist())
    assert result.counterfactual is not None
    assert {*result.labels} == named | {*result.counterfactual.classes.tolist()}
    page = result._repr_html_()
    likeliest = np.argsort(-scores[0])[:6]
    assert all(f">class number {index}</span>" in page for index in likeliest)
    assert f"attributions of class number {likeliest[0]}: red" in page
    told = [text.get_text() for text in result.plot().texts]
    assert any(f"explained: class number {likeliest[0]}, value" in text for text in told)


def test_labels_are_no_difference_between_two_results() -> None:
    """Results that were saved before replies had them are the same, and so are those where likely classes are level."""
    result = answered()
    assert compare(replace(result, labels={}), result).same


def test_a_prediction_that_is_no_number_is_no_class() -> None:
    """NaN has no largest element: index 0 would read like a class."""
    made = replace(answered(), classes=(ClassPrediction(0, "refused", float("nan")),) * 2)
    shown = (
        in_a_terminal(made),
        str(made),
        made._repr_html_(),
        "\n".join(text.get_text() for text in made.plot().findobj(Text)),
    )
    for text in shown:
        assert "no class" in text
        assert "the output is not finite" in text
        assert "nan%" not in text


@pytest.mark.parametrize(
    ("proof_ms", "told"), [(40_000.0, "47.261 s, of which 40.000 tested the model once"), (9.0, "7.270 s")]
)
def test_the_time_of_a_first_request_says_what_tested_the_model(proof_ms: float, told: str) -> None:
    made = replace(answered(), timings=Timings(attribution_ms=7261, proof_ms=proof_ms))
    assert told in str(made)
    assert ("tested" in str(made)) == ("tested" in told)
