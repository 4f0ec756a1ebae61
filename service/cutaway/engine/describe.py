"""A model's insides, as a list."""

from __future__ import annotations

import torch
from torch import nn

from cutaway.engine.hooks import Call, observing
from cutaway.engine.subject import Inputs, Outputs, Subject, dtype_text
from cutaway.requests import Point
from cutaway.results import ModuleInfo, OutputSpec


def describe(subject: Subject, example: Inputs | None) -> tuple[tuple[ModuleInfo, ...], tuple[OutputSpec, ...]]:
    """Every module with its class and parameters and, where there is an ``example`` to run, the shapes that it
    returned; and the model's outputs for that example."""
    modules = subject.tree.modules
    calls: dict[str, list[Call]] = {}
    outputs: Outputs = {}
    if example is not None:
        everywhere = {name: {Point.OUTPUT} for name in modules}
        with subject.guard.untouched(), observing(subject.tree, everywhere) as seen, torch.no_grad():
            outputs = subject.run(example)
        calls = seen.calls
    infos = tuple(
        ModuleInfo(
            name,
            type(module).__name__,
            _parameters(module),
            _shapes(calls.get(name, [])),
            len(calls.get(name, [])),
            subject.tree.aliases.get(name, ()),
        )
        for name, module in modules.items()
    )
    return infos, tuple(OutputSpec(name, dtype_text(out), tuple(out.shape)) for name, out in outputs.items())


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shapes(calls: list[Call]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in calls[0].at(Point.OUTPUT).values()) if calls else ()
