"""The pass that predictions, captures and gradients come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.engine.absent import refuse_captures, refuse_edits, settled
from cutaway.engine.hooks import observing
from cutaway.engine.methods import method_of
from cutaway.engine.plan import Plan, rows
from cutaway.engine.seen import Call, Enough, Gradients, Seen, stacked
from cutaway.engine.subject import Inputs, Outputs, Subject, gradients
from cutaway.engine.targets import Chosen, choose, source
from cutaway.engine.timed import timed
from cutaway.engine.wishes import Wish
from cutaway.engine.witness import Values, living
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    AtLayer,
    Attribution,
    InspectRequest,
    Neuron,
    NeuronAttribution,
    Point,
    PredictedClass,
    Target,
    TopK,
)
from cutaway.results import Timings

_ROUNDINGS = 256
"""How many units of rounding two runs of one model may be apart."""


class Primary(NamedTuple):
    """What the pass brought; all tensors are copies, out of the graph.

    Attributes:
        seen: what the hooks saw.
        wanted: what was to be captured, by module name and operator address.
        outputs: what the model returned; empty where forward stopped early.
        targets: the class indices, [batch] or [batch, k]; None where the target is no class.
        target_values: of the same shape, the target scalars; None where none was needed.
        inputs: the gradients at the inputs.
        parameters: the gradients at parameters.
    """

    seen: Seen
    wanted: dict[str, dict[Point, Wish]]
    outputs: Outputs
    targets: Tensor | None
    target_values: Tensor | None
    inputs: Values
    parameters: Values


def primary(subject: Subject, request: InspectRequest, inputs: Inputs, todo: Plan, timings: Timings) -> Primary:
    """Run it.

    Raises:
        CutawayError: what was asked for cannot be had.
    """
    given = {**inputs, **{name: inputs[name].detach().clone().requires_grad_() for name in todo.gradients_of}}
    named = {name: subject.module.get_parameter(name).requires_grad_() for name in todo.parameters}
    dice = torch.get_rng_state()
    with observing(
        subject.tree, taps(subject, request, todo), todo.edits, batch=rows(inputs), alive=alive(subject, request)
    ) as seen:
        seen.missing = todo.missing
        with timed(timings, "forward_ms"), torch.set_grad_enabled(todo.differentiates):
            outputs = forward(subject, given, seen)
        wanted = settled(todo, seen)
        refuse_edits(todo, seen, subject.tree)
        refuse_captures(wanted, seen, subject.tree)
        chosen, read = target(subject, request, outputs, seen, todo, rows(inputs))
        found: list[Values] = []
        if todo.differentiates and read is not None:
            roots = {**{name: given[name] for name in todo.gradients_of}, **named}
            with timed(timings, "backward_ms"):
                found = _backwards(chosen, read, roots, seen, isinstance(request.target, TopK))
        entangled = seen.entangled
    own = {name: output.detach().clone() for name, output in outputs.items()}
    if entangled:
        refuse_entangled(subject, inputs, own, todo, dice)
    return Primary(
        seen,
        wanted,
        own,
        targets_of(request.target, chosen),
        values_of(request.target, chosen, read),
        {name: _joined(request.target, found, name, 1) for name in todo.gradients_of if _any(found, name)},
        {name: _joined(request.target, found, name, 0) for name in named if _any(found, name)},
    )


def taps(subject: Subject, request: InspectRequest, todo: Plan) -> dict[str, dict[Point, Wish]]:
    """Where hooks sit, and what for."""
    # Modules to be explained are tapped at no point: only their calls are counted.
    names = {subject.tree.resolve(name) for each in request.attributions for name in modules_of(each)}
    return {**{name: dict[Point, Wish]() for name in names}, **todo.taps}


def modules_of(attribution: Attribution) -> dict[str, str]:
    """The modules that ``attribution`` looks at, each with the field that names it, below the method's own."""
    found = {attribution.layer: "layer"} if isinstance(attribution, AtLayer) else {}
    if isinstance(attribution, NeuronAttribution):
        found[attribution.neuron.module] = "neuron.module"
    return found


def alive(subject: Subject, request: InspectRequest) -> str | None:
    """The module whose output the target is read from, where that is a neuron."""
    with at("target"):
        return neuron_module(subject, request.target) if isinstance(request.target, Neuron) else None


def neuron_module(subject: Subject, target: Neuron) -> str:
    """The own name of the module that ``target`` is a neuron of.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``.
    """
    with at("neuron.module"):
        return subject.tree.resolve(target.module)


def forward(subject: Subject, inputs: Inputs, seen: Seen) -> Outputs:
    """What the model returns; nothing, where it stopped early."""
    try:
        with seen.forward():
            return subject.run(inputs)
    except Enough:
        return {}


def target(
    subject: Subject, request: InspectRequest, outputs: Outputs, seen: Seen, todo: Plan, batch: int
) -> tuple[tuple[Chosen, ...], Tensor | None]:
    """What is differentiated, and what it is read from."""
    # A target that was set is looked at even where nothing needs it: a wrong one must not pass in silence.
    needed = (
        todo.differentiates
        or request.target != PredictedClass()
        or any(method_of(a).has_target and a.target is None for a in request.attributions)
    )
    if not needed:
        return (), None
    with at("target"):
        if isinstance(request.target, Neuron):
            name = neuron_module(subject, request.target)
            read = living(seen, name)
        else:
            name = source(request.target, outputs)
            read = outputs[name]
        return choose(request.target, name, read, batch), read


def _backwards(chosen: Sequence[Chosen], read: Tensor, roots: Values, seen: Seen, several: bool) -> list[Values]:
    """The gradients at ``roots``, one for each of ``chosen``; those inside the model reach the hooks on the way."""
    wanted = [*map(get_gradient_edge, roots.values()), *seen.gradient_roots]
    if not wanted:
        return []
    if not read.requires_grad:
        raise error(
            Reason.NOT_DIFFERENTIABLE,
            "the target does not depend differentiably on anything asked for: the model detaches, rounds or indexes",
            "target",
        )
    calls = [call for each in seen.calls.values() for call in each]
    found, taken = [], []
    for number, each in enumerate(chosen):
        arrived = gradients(each.of(read), wanted, again=number + 1 < len(chosen))
        found.append({name: gradient for name, gradient in zip(roots, arrived) if gradient is not None})
        taken.append([call.take_gradients() for call in calls] if several else [])
    if several:
        _show(calls, taken)
    return found


def _show(calls: Sequence[Call], taken: Sequence[Sequence[Gradients]]) -> None:
    for index, call in enumerate(calls):
        call.put_gradients(stacked([each[index] for each in taken]))


def _any(found: Sequence[Values], name: str) -> bool:
    return any(name in each for each in found)


def _joined(target: Target, found: Sequence[Values], name: str, axis: int) -> Tensor:
    """The gradient at ``name``; of a top-k target one for each class, along a new axis."""
    like = next(each[name] for each in found if name in each)
    several = [_dense(each.get(name, torch.zeros_like(like))) for each in found]
    return torch.stack(several, dim=axis) if isinstance(target, TopK) else several[0]


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient  # of an embedding with sparse gradients


def targets_of(target: Target, chosen: Sequence[Chosen]) -> Tensor | None:
    """The class indices, [batch] or [batch, k]; None where the target is no class."""
    indices = [each.indices for each in chosen if each.indices is not None]
    return _side_by_side(target, indices) if indices else None


def values_of(target: Target, chosen: Sequence[Chosen], read: Tensor | None) -> Tensor | None:
    """Of the same shape, the target scalars; None where there is nothing to read them from."""
    if read is None:
        return None
    return _side_by_side(target, [each.of(read.detach()).double() for each in chosen])


def _side_by_side(target: Target, columns: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(columns), dim=1) if isinstance(target, TopK) else columns[0]


def refuse_entangled(subject: Subject, inputs: Inputs, outputs: Outputs, todo: Plan, dice: Tensor) -> None:
    """Gradient points work on copies. Where the model changed a tensor in place and went on with its other half, the
    copies have changed what it computes: a run without them, with the same random numbers, tells."""
    values = {name: [each for each in edits if not each[1].point.is_gradient] for name, edits in todo.edits.items()}
    with subject.dice(), observing(subject.tree, {}, values, batch=rows(inputs)) as seen:
        torch.set_rng_state(dice)
        with seen.forward():
            plain = subject.run(inputs)
    if not all(_alike(plain[name].detach(), output) for name, output in outputs.items()):
        raise error(
            Reason.NOT_DIFFERENTIABLE,
            "the model changes in place a tensor whose gradient is captured or edited, and then uses it under another "
            "name, which no backward hook can follow: take another module, or the operation out of place",
            "captures" if any(point.is_gradient for wishes in todo.taps.values() for point in wishes) else "edits",
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two runs computed the same. A copy may make a library take another kernel, which rounds otherwise."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = one[one.isfinite()].abs().double()
    scale = float(finite.max()) if finite.numel() else 1.0
    far = min(_ROUNDINGS * torch.finfo(one.dtype).eps, 0.05) * scale
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=far, equal_nan=True)
