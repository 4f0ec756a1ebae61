"""Copies that a GPU still writes: nobody reads them before they are there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import CapturedValues, watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import PendingCopies, RecordedCall, copy_to_host
from cutaway.engine.model.module_tree import ModuleTree


class Late(PendingCopies):
    """Copies as a slow GPU makes them: all arrive when somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[Tensor, Tensor]] = []

    def copy_to_host(self, tensor: Tensor) -> Tensor:
        copy = torch.full_like(tensor, -1)
        self._due.append((copy, copy_to_host(tensor)))
        return copy

    def wait(self) -> None:
        while self._due:
            copy, values = self._due.pop()
            copy.copy_(values)


@pytest.mark.parametrize(
    "read",
    [
        lambda call: call.at(Point.GRAD_OUTPUT)[""],
        lambda call: call.captured(Point.GRAD_OUTPUT)[""].values,
        lambda call: next(part.values for _, _, part in call.entries()),
        lambda call: call.take_gradients()[Point.GRAD_OUTPUT][""].values,
    ],
)
def test_every_way_to_read_a_call_waits(read: Callable[[RecordedCall], Tensor]) -> None:
    """Whichever way what a hook saw is read, it has arrived."""
    call = RecordedCall()
    call._pending_copies = Late()
    call.record(Point.GRAD_OUTPUT, "", CapturedValues(torch.arange(3), None))
    assert torch.equal(read(call), torch.arange(3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_captures_on_a_gpu_are_what_the_hooks_saw() -> None:
    """A layer's output arrives whole from the GPU, in pinned memory, though the model overwrites it at once."""

    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4096, 4096)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.first(x)
            hidden.zero_()
            return hidden

    model = Overwriting().cuda().eval()
    x = torch.randn(4096, 4096, device="cuda")
    with torch.no_grad():
        expected = model.first(x).cpu()
        with observing(ModuleTree(model), {"first": watching(Point.OUTPUT)}) as seen, seen.forward():
            model(x)
    values = seen.calls["first"][0].at(Point.OUTPUT)[""]
    assert values.is_pinned()
    assert torch.equal(values, expected)


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda hidden: hidden.zero_(),
        lambda hidden: hidden.data.zero_(),
        lambda hidden: hidden.numpy().fill(0),
        lambda hidden: hidden.untyped_storage().fill_(0),
    ],
    ids=["in place", "data", "numpy", "storage"],
)
def test_what_overwrites_a_tensor_later_does_not_change_its_capture(overwrite: Callable[[Tensor], object]) -> None:
    """PyTorch's version counters know of the first of these ways only, so they cannot tell when to copy."""

    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.first(x)
            overwrite(hidden)
            return hidden

    model, x = Overwriting(), torch.ones(1, 2)
    with torch.no_grad(), observing(ModuleTree(model), {"first": watching(Point.OUTPUT)}) as seen, seen.forward():
        assert not model(x).any()
    assert torch.equal(seen.calls["first"][0].at(Point.OUTPUT)[""], model.first(x).detach())
