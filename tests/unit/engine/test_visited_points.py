"""Whether Captum ran at the points that a method is made of, where points are no finite numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import cutaway as ca
from cutaway.engine.checks.pass_summary import PassSummary
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, consecutive
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.planning.attribution_setup import resolve_attribution

INF, NAN = float("inf"), float("nan")


def _in_parts(size: int, problem: AttributionProblem) -> list[Values]:
    return [{"x": point} for point in problem.inputs["x"].split(size)]


@pytest.mark.parametrize(
    ("wanted", "seen", "same"),
    [
        ([1.0, INF, NAN], [1.0, INF, NAN], True),
        ([1.0, NAN], [1.0, 1.0], False),
        ([1.0, 1.0], [1.0, NAN], False),
        ([INF, 1.0], [-INF, 1.0], False),
        ([INF, 1.0], [1.0, 1.0], False),
        ([INF, 1.0], [INF, 2.0], False),  # the infinity is not what rounding is measured by
        ([NAN, 1.0], [NAN, 1.0 + 1e-7], True),
    ],
)
def test_points_that_are_no_finite_numbers(wanted: list[float], seen: list[float], same: bool) -> None:
    """The same infinities and the same NaNs are the same point; an infinity hides no other difference."""
    net, rows = nn.Linear(1, 1), [torch.tensor([[each] for each in side]) for side in (wanted, seen)]
    model = InspectedModel(net, lambda tensors: net(**tensors))
    about = resolve_attribution(model, ca.Saliency(), {"x": rows[0]}, {}).at_target(ResolvedTarget("", lambda y: y))
    for size in (len(wanted), 1):  # however many rows a tensor has
        method = replace(method_of(about.request), points=partial(_in_parts, size))
        summary = PassSummary(about, method, consecutive([len(wanted)]), of_captum=True)
        summary.add(Pass({"x": rows[1]}))
        assert any(summary.mismatches()) is not same
