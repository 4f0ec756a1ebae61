"""Locates faults: the module or operator where passes begin to differ or a gradient ends, rows in which nothing moved,
and where a check failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from traceback import walk_tb

import torch
from torch import Tensor
from torch.autograd.graph import Node

from cutaway.contract import requests
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.requests import CheckRequest, Point
from cutaway.contract.results import Cause, Check, Verdict
from cutaway.engine.hooks.axes import known_row_axes
from cutaway.engine.hooks.capture_spec import CapturedValues, watching
from cutaway.engine.hooks.edits import Override
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.methods.spec import Method
from cutaway.engine.model.failures import column_names
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, gradients, graph_nodes
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.findings import Finding, row_list
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.planning.attribution_setup import moves_integers
from cutaway.engine.runtime.numerics import equal

_LOG = logging.getLogger(__name__)

CallsBySite = Mapping[str, Sequence[RecordedCall]]


def first_difference(model: InspectedModel, one: Inputs, other: Inputs, row: int | None = None) -> str:
    """Compares passes on two inputs, and returns where they begin to differ: in one ``row``, or anywhere.

    That is the first operator's address, or module's name, that returns different values for equal inputs; ``""`` if
    there is none.
    """
    names = list(model.tree.modules)
    differing = _differing(_calls(model, one, names), _calls(model, other, names), row)
    for name in differing:
        if any(inner != name and inner.startswith(f"{name}." if name else "") for inner in differing):
            continue  # an inner module differs too
        operators = [f"{name}:*#*"]
        addresses = _differing(_calls(model, one, operators), _calls(model, other, operators), row)
        return addresses[0] if addresses else name
    return ""


def _calls(model: InspectedModel, inputs: Inputs, names: Sequence[str]) -> CallsBySite:
    sites = {name: watching(Point.INPUT, Point.OUTPUT) for name in names}
    batch = Batch(len(next(iter(inputs.values()))), known_row_axes(model, inputs))
    with torch.no_grad(), observing(model.tree, sites, batch=batch) as seen, seen.forward():
        model.run(inputs)
    return seen.calls


def _differing(one: CallsBySite, other: CallsBySite, row: int | None) -> list[str]:
    """Returns the sites that got equal inputs in two passes and returned different outputs, in ``row`` or anywhere."""
    return [
        name
        for name in one
        if any(
            _same(call, counterpart, Point.INPUT, row) and not _same(call, counterpart, Point.OUTPUT, row)
            for call, counterpart in zip(one[name], other.get(name, ()))
        )
    ]


def _same(one: RecordedCall, other: RecordedCall, point: Point, row: int | None) -> bool:
    ours, theirs = one.captured(point), other.captured(point)
    return ours.keys() == theirs.keys() and all(_equal(ours[path], theirs[path], row) for path in ours)


def _equal(one: CapturedValues, other: CapturedValues, row: int | None) -> bool:
    axis = one.row_axis
    if row is None or axis is None or axis != other.row_axis:
        return one.values.shape == other.values.shape and equal(one.values, other.values)
    return equal(one.values.select(axis, row), other.values.select(axis, row))


def _visit_outputs(problem: AttributionProblem, visit: Callable[[str, Tensor], Tensor]) -> Tensor:
    """Runs a differentiable pass at the problem's input, and returns the tensor from which the target is read.

    ``visit`` gets the name and each floating output of every module, in the graph, in the order in which modules end.
    It returns that output.
    """
    tree = problem.model.tree
    edits = {name: [(0, Override(change=partial(visit, name)))] for name in tree.modules}
    floating = [name for name in problem.explained if problem.inputs[name].is_floating_point()]
    leaves = {name: problem.inputs[name].detach().clone().requires_grad_() for name in floating}
    with torch.enable_grad(), observing(tree, {}, edits) as seen, seen.forward():
        return problem.read({**problem.inputs, **leaves})


_RECTIFYING = (
    *(requests.GuidedBackprop, requests.Deconvolution, requests.GuidedGradCam),
    *(requests.NeuronGuidedBackprop, requests.NeuronDeconvolution),
)
"""Methods that pass back only what is positive."""

_NOTHING_POSITIVE = (
    "the attribution is exactly zero everywhere, although the gradient is not: nothing positive, which is all that the "
    "method passes back, reaches the input; explain another target, or use a method that passes back the whole gradient"
)


def no_gradient(problem: AttributionProblem, rows: Tensor) -> Finding:
    """Returns where the backward path from the target ends in ``rows``, [batch] of booleans."""
    if bool(rows.all()):
        return _no_gradient(problem)
    chosen = rows.nonzero().flatten().tolist()
    found = _no_gradient(problem if problem.is_row_specific else problem.of_rows(chosen))
    own = (found.reason,) * len(chosen)
    return found._replace(reason=f"in {row_list(chosen, problem.rows)}, {found.reason}", rows=tuple(chosen), own=own)


def _no_gradient(problem: AttributionProblem) -> Finding:
    if isinstance(problem.request, requests.NeuronConductance):
        return Finding(
            Cause.NO_GRADIENT,
            f"what flows through the neuron of {problem.request.neuron.module!r} is exactly zero on the whole path: "
            "the target does not depend on this neuron there (is the ReLU behind it off?), or the neuron not on the "
            "input; choose another neuron",
        )
    try:
        last_unreached, first_reached = _where_gradient_ends(problem)
    except InvalidArgument:
        last_unreached, first_reached = "", ""
    if last_unreached and first_reached:
        where = f"it reaches {first_reached!r} and not {last_unreached!r}"
    elif last_unreached:
        where = f"it does not even reach {last_unreached!r}, the last module"
    elif isinstance(problem.request, _RECTIFYING):
        return Finding(Cause.NO_GRADIENT, _NOTHING_POSITIVE)
    else:
        where = "it reaches every module"
    return Finding(
        Cause.NO_GRADIENT,
        f"the gradient is exactly zero everywhere ({where}): either the target does not depend on this input, or the "
        "path to it is cut (detach, round, argmax) or saturated",
    )


def _where_gradient_ends(problem: AttributionProblem) -> tuple[str, str]:
    """Returns the last module that no gradient reaches, or only zeros, and the first one behind it that has a gradient.

    Either is ``""`` if there is none. Only modules without children count.
    """
    order: list[str] = []
    outputs: dict[str, Tensor] = {}

    def visit(name: str, tensor: Tensor) -> Tensor:
        if name and not list(problem.model.tree.modules[name].children()):
            order.append(name)
            if tensor.requires_grad:
                outputs[name] = tensor
        return tensor

    read = _visit_outputs(problem, visit)
    arrived = gradients(problem.target.scalars(read), list(outputs.values())) if outputs else ()
    reached = {name for name, gradient in zip(outputs, arrived) if gradient is not None and bool(gradient.any())}
    last = max((index for index, name in enumerate(order) if name not in reached), default=-1)
    behind = [name for name in order[last + 1 :] if name in reached]
    return (order[last] if last >= 0 else ""), (behind[0] if behind else "")


def custom_functions(problem: AttributionProblem) -> dict[str, str]:
    """Returns each custom ``torch.autograd.Function`` in the model's graph, with the module that calls it first."""
    modules: dict[str, str] = {}
    known: set[Node] = set()

    def visit(name: str, tensor: Tensor) -> Tensor:
        for node in graph_nodes(tensor.grad_fn, known):
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                modules.setdefault(node.name().removesuffix("Backward"), name)
        return tensor

    visit("", _visit_outputs(problem, visit))
    return modules


def failed_check(problem: AttributionProblem, method: Method, request: CheckRequest, failure: Exception) -> Check:
    """Returns the check that could not be made, because ``failure`` ended it: INCONCLUSIVE, with the place."""
    _LOG.warning("a check of %s failed", type(problem.request).__name__, exc_info=failure)
    return Check(
        method.compares(problem.request), request.mode, 0.0, 0.0, 0.0, 0.0, Verdict.INCONCLUSIVE,
        f"the check {_failed_how(failure)}"[:500],
        Cause.CHECK_FAILED,
    )  # fmt: skip


def _failed_how(failure: Exception) -> str:
    if is_out_of_memory(failure):
        return "needs more memory than is free, so nothing is known of these values: send fewer rows, or ask no check"
    frames = [frame for frame, _ in walk_tb(failure.__traceback__)]
    modules = [(frame.f_globals.get("__name__", ""), frame.f_code.co_name) for frame in frames]
    where = next((f"{module}.{name}" for module, name in reversed(modules) if module.startswith("cutaway.")), "")
    return f"failed in {where}, so nothing is known of these values: {type(failure).__name__}: {failure}"


def unchanged(rows: Tensor) -> Finding:
    """Returns the finding that the target of ``rows``, [batch] of booleans, is the same in every pass."""
    return Finding.of_rows(
        Cause.NOTHING_CHANGED,
        rows,
        lambda which: (
            f"the target of {which} is exactly the same in every pass: it does not depend on the replaced features, or "
            "their replacement equals them"
        ),
    )


def unmoved(problem: AttributionProblem, rows: Tensor) -> Finding:
    """Returns the finding that the layer returns the same in every pass of ``rows``, [batch] of booleans."""
    why = _why_unmoved(problem, rows)
    what = f"the layer {problem.layer!r} returns the same for the input and for the baseline"
    return Finding.of_rows(Cause.NOTHING_CHANGED, rows, lambda which: f"{what}, in {which}: {why}")


def _why_unmoved(problem: AttributionProblem, rows: Tensor) -> str:
    if not isinstance(problem.request, requests.Expectation):
        same = [name for name in problem.baselines if bool(_equals_baseline(problem, name)[rows].all())]
        if same:
            beside = ", and no other explained input reaches it" if len(same) < len(problem.explained) else ""
            return f"there, the baseline of {', '.join(map(repr, same))} equals the input{beside}; choose another one"
        if why := _partly_at_baseline(problem, rows):
            return why
    others = [name for name in problem.inputs if name not in problem.explained]
    also = f", such as {', '.join(map(repr, others[:3]))}" if others else ""
    integers = not all(problem.inputs[name].is_floating_point() for name in others)
    if integers and not moves_integers(problem.request):
        also += "; of these, only LayerIntegratedGradients and LayerDeepLift move integers"
    return f"the explained inputs ({', '.join(problem.explained)}) do not reach it; name in inputs those that do{also}"


def _partly_at_baseline(problem: AttributionProblem, rows: Tensor) -> str:
    """Returns why the layer is the same in ``rows`` although inputs reach it, as far as elements equal their baselines.

    If it moves in other rows, inputs do reach it. Else they may not: only categories, of which one number decides, are
    looked at.
    """
    reaches = not bool(rows.all())
    parts = [
        f"{equal} of {name!r}"
        for name in problem.baselines
        if (reaches or not problem.inputs[name].is_floating_point()) and (equal := _at_baseline(problem, name, rows))
    ]
    if not (parts or reaches):
        return ""
    if not parts:
        return (
            "it moves in other rows, so the inputs reach it; there, what it reads, or what is left of that, is the same"
        )
    equal = f"{', '.join(parts)} equal{'s' if len(parts) == 1 else ''} the baseline there"
    if reaches:
        return f"it moves in other rows, and {equal}; choose another baseline"
    return f"{equal}: if the layer reads only that, choose another baseline; else name in inputs those that reach it"


def _at_baseline(problem: AttributionProblem, name: str, rows: Tensor) -> str:
    """Returns, in words, the elements of an input that equal their baseline in each of ``rows``; ``""`` for none."""
    equal = problem.inputs[name] == problem.baselines[name]
    everywhere = equal.reshape(problem.rows, -1)[rows.to(equal.device)].all(dim=0).tolist()
    names = column_names(problem.model.inputs, name, len(everywhere))
    listed = [names[number] for number, is_equal in enumerate(everywhere) if is_equal] if names else []
    if not any(everywhere):
        return ""
    if 0 < len(listed) <= _LISTED:
        return ", ".join(map(repr, listed))
    return f"{sum(everywhere)} of {len(everywhere)} elements"


_LISTED = 4
"""The most columns that a reason names."""


def _equals_baseline(problem: AttributionProblem, name: str) -> Tensor:
    """Returns, [batch], whether an input equals its baseline."""
    equal = problem.inputs[name] == problem.baselines[name]
    return equal.reshape(problem.rows, -1).all(dim=1).cpu()


def baseline_is_input(problem: AttributionProblem) -> Finding | None:
    """Finds rows in which every explained input equals its baseline."""
    if not problem.baselines or isinstance(problem.request, requests.Expectation):
        return None
    same = torch.stack([_equals_baseline(problem, name) for name in problem.baselines]).all(dim=0)
    if not bool(same.any()):
        return None
    return Finding.of_rows(
        Cause.BASELINE_IS_INPUT,
        same,
        lambda which: (
            f"the baseline equals the input in {which}: there is no difference to explain; choose another baseline"
        ),
    )
