"""A model's insides, as a list."""

from __future__ import annotations

import torch
from torch import nn

from cutaway.engine.hooks import observing
from cutaway.engine.seen import Call
from cutaway.engine.subject import Inputs, Outputs, Subject, dtype_text
from cutaway.engine.wishes import watching
from cutaway.requests import Point
from cutaway.results import ModuleInfo, OperatorInfo, OutputSpec

EVERY_OPERATOR = "**:*#*"


def describe(
    subject: Subject, example: Inputs | None, *, operators: bool = False
) -> tuple[tuple[ModuleInfo, ...], tuple[OutputSpec, ...], tuple[OperatorInfo, ...]]:
    """Every module with its class and parameters and, where there is an ``example`` to run, the shapes that it
    returned; the model's outputs for that example; and on request the operators that ran for it."""
    modules = subject.tree.modules
    calls: dict[str, list[Call]] = {}
    ran: tuple[OperatorInfo, ...] = ()
    outputs: Outputs = {}
    if example is not None:
        everywhere = [*modules, *([EVERY_OPERATOR] if operators else [])]
        taps = {name: watching(Point.OUTPUT) for name in everywhere}
        with subject.guard.untouched(), observing(subject.tree, taps) as seen, torch.no_grad(), seen.forward():
            outputs = subject.run(example)
        calls = seen.calls
        ran = tuple(OperatorInfo(name, _shapes(calls[name]), len(calls[name])) for name in seen.operators)
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
    return infos, tuple(OutputSpec(name, dtype_text(out), tuple(out.shape)) for name, out in outputs.items()), ran


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shapes(calls: list[Call]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in calls[0].at(Point.OUTPUT).values()) if calls else ()
