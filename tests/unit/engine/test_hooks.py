"""The hook context manager by itself, with nothing behind it that would tidy up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.module_tree import ModuleTree

TABLES = ("_forward_hooks", "_forward_hooks_always_called", "_forward_pre_hooks", "_backward_hooks")


def hooks(model: nn.Module) -> int:
    """How many hooks sit on all modules of ``model``."""
    return sum(len(getattr(module, table)) for module in model.modules() for table in TABLES)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_no_hook_outlives_the_block(copies: bool, raises: bool) -> None:
    """Whatever ends the block: its end, an exception in forward, or one in between."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    taps = {name: watching(*Point) for name in ("", "0", "1")}

    def watch() -> None:
        with observing(ModuleTree(model), taps, copies=copies) as seen, seen.forward():
            assert hooks(model) > 0
            model(torch.ones(1, 3 if raises else 2))

    if raises:
        with pytest.raises(RuntimeError):
            watch()
    else:
        watch()
    assert hooks(model) == 0
