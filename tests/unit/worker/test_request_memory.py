"""Requests that need more than their worker's own memory, which a pool of all workers has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.transport import read_piece
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import Verdict
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.contract.wire.chunks import ReplyAssembler, as_message
from cutaway.server.memory import MemoryPool, RequestMemory, size_text
from cutaway.server.worker.call import Call
from cutaway.server.worker.worker import Worker
from cutaway.v1.inspection_service_pb2 import InspectStreamResponse
from tests.support.worker_calls import message

OWN, POOL = 1 << 26, 1 << 28


class Hungry(nn.Module):
    """A network that runs out of memory where a graph has several rows and the request has less than the pool."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        LIMITS.append(WORKERS[-1]._model.request_bytes or 0)
        if torch.is_grad_enabled() and LIMITS[-1] < FEW:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        output: Tensor = self.layer(x)
        return output


FEW = OWN + POOL
LIMITS: list[int] = []
WORKERS: list[Worker] = []


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker with a pool, whose limit this process does not get."""
    if not psutil.LINUX:
        pytest.skip("only Linux limits memory so")
    WORKERS.append(Worker.of(Hungry(), "m"))
    WORKERS[-1].memory = RequestMemory(OWN, MemoryPool(tmp_path / "memory", POOL))
    LIMITS.clear()
    return WORKERS[-1]


def ask(worker: Worker, **asked: Any) -> ca.InspectResult:
    return worker.inspect(InspectRequest("m", tensors={"x": np.ones((1, 3), np.float32)}, **asked))


def test_a_model_with_a_sparse_buffer_is_loaded() -> None:
    """Its bytes are those of the arrays that it consists of: 2 numbers, and the places of each."""
    model = nn.Module()
    model.register_buffer("adjacency", torch.eye(2).to_sparse())
    size = [tensor.nbytes for tensor in (torch.ones(2), torch.ones(2, 2, dtype=torch.int64))]
    assert Worker.of(model, "m").fits() == f"weights of {size_text(sum(size))}"


def test_what_fits_never_takes_the_pool(worker: Worker) -> None:
    assert ask(worker).predictions
    assert set(LIMITS) == {OWN}


@pytest.mark.parametrize("in_place", [False, True])
def test_what_runs_out_runs_again_with_the_pool(worker: Worker, in_place: bool) -> None:
    """Also where its error could stand in a place; the next one like it begins with the pool."""
    for first in (OWN, OWN + POOL):
        LIMITS.clear()
        explained = ask(worker, attributions=(ca.Saliency(),), attribution_errors_in_place=in_place).attributions[0]
        assert explained.verdict is Verdict.AGREES
        assert (LIMITS[0], LIMITS[-1]) == (first, OWN + POOL)
    LIMITS.clear()
    assert ask(worker).predictions
    assert set(LIMITS) == {OWN}


def test_what_runs_again_sends_no_part_again(worker: Worker) -> None:
    """The prediction is out when the explanation runs out of memory: its rest follows."""
    request = InspectRequest("m", tensors={"x": np.ones((1, 3), np.float32)}, attributions=(ca.Saliency(),))
    call = Call.of_message(message(request, parts=True), lambda: False, lambda _: None)
    (reply,) = worker.answer([call])
    pieces = [
        read_piece(as_message(piece).joined()) for piece in worker.pieces.take(decode_worker_reply(reply).pieces) or ()
    ]
    kinds = [InspectStreamResponse.FromString(piece).piece.WhichOneof("kind") for piece in pieces]
    assert LIMITS[-1] == OWN + POOL
    assert [kind for kind in kinds if kind != "progress"] == [
        *("header", "chunk", "header", "chunk", "header", "trailer")
    ]
    assembler = ReplyAssembler(in_parts=True)
    for piece in pieces:
        assembler.add(piece)
    assert assembler.result().attributions[0].verdict is Verdict.AGREES


def test_what_the_pool_has_no_room_for_fails_in_its_place(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.FEW", OWN + POOL + 1)
    result = ask(worker, attributions=(ca.Saliency(),), attribution_errors_in_place=True)
    error = result.attributions[0].error
    assert error is not None
    assert error.reason == "OUT_OF_MEMORY"
    assert result.predictions


class WideInside(nn.Module):
    """A network of which eight rows fit, and whose results are small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4096)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 8:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return self.layer(x)[:, :2].cos()


def test_rows_that_may_run_apart_are_not_refused() -> None:
    """Sixty-four rows whose activations take twice what is allowed are answered, eight at a time."""
    served, x = Worker.of(WideInside(), "m"), np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    served.memory = RequestMemory(1 << 19)
    found = served.inspect(InspectRequest("m", tensors={"x": x}, attributions=(ca.DeepLift(),), input_gradients=()))
    alone = served.inspect(InspectRequest("m", tensors={"x": x[50:51]}, input_gradients=()))
    np.testing.assert_allclose(found.predictions["output"][50:51], alone.predictions["output"], rtol=1e-6)
    np.testing.assert_allclose(found.input_gradients["x"][50:51], alone.input_gradients["x"], rtol=1e-5)
    assert found.attributions[0].values["x"].shape == (64, 3)
