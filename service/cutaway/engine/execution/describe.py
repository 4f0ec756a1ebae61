"""Describes a model: its modules, its outputs, and the operators of its forward pass."""

from __future__ import annotations

import torch

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs, dtype_text
from cutaway.requests import Point
from cutaway.results import ModuleInfo, OperatorInfo, OutputSpec

EVERY_OPERATOR = "**:*#*"


def describe(
    model: InspectedModel, example: Inputs | None, *, operators: bool = False
) -> tuple[tuple[ModuleInfo, ...], tuple[OutputSpec, ...], tuple[OperatorInfo, ...]]:
    """Returns every module, the model's outputs and, with ``operators``, the operators that ran. Shapes and calls are
    those of a forward pass of ``example``; without one they are empty."""
    calls: dict[str, list[RecordedCall]] = {}
    addresses: list[str] = []
    outputs: Outputs = {}
    if example is not None:
        names = [*model.tree.modules, *([EVERY_OPERATOR] if operators else [])]
        sites = {name: watching(Point.OUTPUT) for name in names}
        with model.guard.restoring(), observing(model.tree, sites) as recording, torch.no_grad(), recording.forward():
            outputs = model.run(example)
        calls, addresses = recording.calls, list(recording.operators)
    modules = (
        ModuleInfo(
            name,
            type(module).__name__,
            sum(parameter.numel() for parameter in module.parameters()),
            _shapes(calls.get(name, [])),
            len(calls.get(name, [])),
            model.tree.aliases.get(name, ()),
        )
        for name, module in model.tree.modules.items()
    )
    specs = (OutputSpec(name, dtype_text(output), tuple(output.shape)) for name, output in outputs.items())
    ran = (OperatorInfo(name, _shapes(calls[name]), len(calls[name])) for name in addresses if name in calls)
    return tuple(modules), tuple(specs), tuple(ran)


def _shapes(calls: list[RecordedCall]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in calls[0].at(Point.OUTPUT).values()) if calls else ()
