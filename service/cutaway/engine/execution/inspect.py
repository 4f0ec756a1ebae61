"""Answers one request: plan, hook, forward, backward, collect, attribute, check."""

from __future__ import annotations

import torch

from cutaway.contract.requests import InspectRequest, Point
from cutaway.contract.results import InspectResult, ModuleInfo, OperatorInfo, OutputSpec
from cutaway.engine.execution.attribute import run_attributions
from cutaway.engine.execution.collect import collect_result
from cutaway.engine.execution.main_pass import MainPass, run_main_pass
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs, dtype_text
from cutaway.engine.planning.plan import Plan, plan_request
from cutaway.engine.runtime.interruption import NEVER_CANCELLED, Cancellation


def inspect(
    model: InspectedModel, request: InspectRequest, inputs: Inputs, *, cancellation: Cancellation = NEVER_CANCELLED
) -> InspectResult:
    """Answers ``request``; afterwards the model is as before.

    Hooks are state of the model: the caller makes sure that nothing else uses it meanwhile.

    Args:
        model: the model.
        request: the request.
        inputs: its tensors, ``[batch, ...]`` each, on the model's device.
        cancellation: when the caller stops waiting; no pass begins later.

    Raises:
        CutawayError: the request cannot be answered.
    """
    return run_plan(plan_request(model, request, inputs, cancellation))


def run_plan(plan: Plan) -> InspectResult:
    """Answers the request of ``plan``, as `inspect`."""
    plan.model.passes.reset()
    with plan.model.session(plan.cancellation, plan.request.arguments):
        unedited = _run_unedited(plan) if plan.request.compare else {}
        (main,) = run_main_pass([plan])  # hook, forward, backward
        return finish(main, unedited)


def _run_unedited(plan: Plan) -> Outputs:
    """Returns what the model returns without edits, in the same grad mode and with the same random numbers."""
    with plan.model.kept_rng_state(), torch.set_grad_enabled(plan.differentiates):
        return {name: output.detach().clone() for name, output in plan.model.run(plan.inputs).items()}


def finish(main: MainPass, unedited: Outputs | None = None) -> InspectResult:
    """Computes and checks the attributions of a request whose main pass has run, and returns its result.

    Args:
        main: the main pass; the model is still in its session.
        unedited: what the model returns without edits, where the request compares.
    """
    return collect_result(main, run_attributions(main), unedited or {})


# Describes a model: its modules, its outputs, and the operators of its forward pass.


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
