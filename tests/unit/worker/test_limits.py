"""What an operator allows, and not one more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter
from cutaway.contract.results import InputSpec
from cutaway.contract.wire.worker_reply import Parts
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from cutaway.server.worker.calls import Calls
from tests.support.waiting import PATIENCE_S
from tests.support.worker_calls import message, read, worker

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


LACKS_MEMORY, BREAKS = 666.0, 667.0
_broken = threading.Event()  # outside of the model, whose own state is restored


class Breaking(nn.Linear):
    """Runs out of memory, after which a library may no longer run."""

    def forward(self, input: Tensor) -> Tensor:
        if _broken.is_set():
            raise RuntimeError("could not create a primitive")
        if input.max() >= LACKS_MEMORY:
            if input.max() >= BREAKS:
                _broken.set()
            raise MemoryError
        return super().forward(input)


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([1.0], False),
        ([LACKS_MEMORY, 1.0], False),
        ([BREAKS], True),
    ],
    ids=["nothing happens", "it recovers", "it is broken"],
)
def test_a_worker_that_memory_has_broken_is_replaced(values: list[float], ends: bool) -> None:
    """After a call without memory the model runs its example again; each call has its reply first."""
    _broken.clear()
    served = worker(TensorAdapter(Breaking(2, 2), inputs=(InputSpec("input", "float32", (-1, 2)),)))
    served._check_row_independence()  # as a worker does that loads an archive
    ended, replied = threading.Event(), threading.Event()
    replies: dict[int, bytes] = {}

    def reply(number: int, data: Parts) -> None:
        replies[number] = b"".join(data)
        assert not ended.is_set()

    calls = Calls(served, reply, unsound=ended.set)
    for value in values:
        calls.run([message(ca.InspectRequest("model", tensors={"input": np.full((1, 2), value, np.float32)}))])
    served.threads.submit(replied.set)
    assert replied.wait(PATIENCE_S)
    assert ended.is_set() == ends
    assert len(replies) == len(values)
    for value, data in zip(values, replies.values()):
        if value >= LACKS_MEMORY:
            with pytest.raises(ca.ResourceExhausted, match="OUT_OF_MEMORY"):
                read(data)
