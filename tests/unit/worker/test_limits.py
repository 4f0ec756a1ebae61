"""What an operator allows, and not one more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.gateway import serve
from cutaway.server.settings import Settings

ALLOWED = Settings(max_rows=3, max_captures=2, max_attributions=2, max_steps=8)
X = np.ones((3, 2), np.float32)
IG = ca.IntegratedGradients


class Counting(nn.Linear):
    """Counts how often it runs."""

    runs = 0

    def forward(self, input: Tensor) -> Tensor:
        self.runs += 1
        return super().forward(input)


@pytest.mark.parametrize(
    ("rows", "allowed", "more", "field"),
    [
        (3, {}, None, "tensors.by_name.input"),
        (1, {"captures": ["", "**"][1:]}, {"captures": ["**"] * 3}, "captures"),
        (1, {"attributions": [IG(n_steps=8)] * 2}, {"attributions": [ca.Saliency()] * 3}, "attributions"),
        (1, {"attributions": [IG(n_steps=8)]}, {"attributions": [ca.Saliency(), IG(n_steps=9)]},
         "attributions[1].integrated_gradients.n_steps"),
        (1, {"attributions": [ca.ShapleyValueSampling(n_samples=8)]},
         {"attributions": [ca.ShapleyValueSampling(n_samples=9)]},
         "attributions[0].shapley_value_sampling.n_samples"),
    ],
    ids=["rows", "captures", "explanations", "steps", "samples"],
)  # fmt: skip
def test_limits_are_held_before_anything_runs(
    rows: int, allowed: dict[str, Any], more: dict[str, Any] | None, field: str
) -> None:
    """As much as is allowed is answered; one more is refused, with the field, the number and the limit, and the model
    is not run."""
    model = Counting(2, 2)
    with serve({"m": model}, settings=ALLOWED) as server, ca.Client(server.address) as client:
        assert client.inspect("m", {"input": X[:rows]}, **allowed).predictions
        before = model.runs
        beyond = np.ones((rows + 1, 2), np.float32) if more is None else X[:rows]
        with pytest.raises(ca.ResourceExhausted, match=r"the request has \d+ \w+, \d+ are allowed") as refusal:
            client.inspect("m", {"input": beyond}, **(more or {}))
        assert (refusal.value.reason, refusal.value.field) == ("LIMIT_EXCEEDED", field)
        assert refusal.value.retry_after_s is None
        assert model.runs == before
