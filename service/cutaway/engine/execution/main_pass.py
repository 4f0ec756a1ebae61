"""The main pass: one forward pass and, where gradients are needed, its backward passes, for one or several requests.

Predictions, captures and gradients come from it. A request that runs alone is a batch of one request, whose tensors are
not split. A dry run is the same forward pass with capture specs that keep shapes only, and without a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Capture, InspectRequest, Neuron, Point, Target, is_several
from cutaway.contract.results import ClassPrediction, Timings
from cutaway.engine.execution.missing import refuse_captures, refuse_edits, resolve_operators
from cutaway.engine.hooks.axes import find_channels, row_axes
from cutaway.engine.hooks.capture_spec import CaptureSpec
from cutaway.engine.hooks.hook_site import Batch
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall, Recording, StopForward, stack_gradients
from cutaway.engine.model.inspected_model import Inputs, Outputs, gradients
from cutaway.engine.model.module_tree import is_glob
from cutaway.engine.model.session import timed
from cutaway.engine.passes.pass_recorder import RowRange, Values, concatenated, consecutive, neuron_output
from cutaway.engine.passes.targets import ResolvedTarget, explained_outputs, resolve_target
from cutaway.engine.planning.attribution_setup import row_texts
from cutaway.engine.planning.plan import CaptureSites, RequestPlan
from cutaway.engine.runtime.numerics import WITHOUT_COPIES, close, dense

# A main pass for several requests: the conditions, their joint plan, and the parts of its record.


def may_share(request: InspectRequest) -> bool:
    """Returns whether the main pass of ``request`` may serve other requests too.

    Edits make it a pass of another model, and a generation has many passes. Gradients of parameters are sums over the
    batch. A top-k target takes several backward passes. A neuron is read inside the model. The operators of a glob are
    known only afterwards. Positions depend on the padding of the request's own rows.
    """
    return not (
        request.dry_run
        or request.generate
        or request.sweep
        or request.direct
        or request.attacks
        or request.concepts
        or request.influence
        or request.counterfactual
        or request.edits
        or isinstance(request.target, Neuron)
        or is_several(request.target)
        or any(target is not None and target.position is not None for target in _targets(request))
        or any(map(_is_of_its_request, request.captures))
    )


def _targets(request: InspectRequest) -> Iterator[Target | None]:
    yield request.target
    yield from (attribution.target for attribution in request.attributions)


def _is_of_its_request(capture: Capture) -> bool:
    has_glob = bool(capture.op) and is_glob(capture.op)
    return bool(capture.parameter) or has_glob or capture.position is not None


def joint_plan(plans: Sequence[RequestPlan]) -> RequestPlan:
    """Returns one plan that does what all ``plans`` do, for the rows of all of them; of one plan, that plan."""
    if len(plans) == 1:
        return plans[0]
    all_stop = all(plan.missing is not None for plan in plans)
    return replace(
        plans[0],
        inputs=concatenated([plan.inputs for plan in plans]),
        sites=_merged([plan.hook_sites for plan in plans]),
        gradients_of=tuple(dict.fromkeys(name for plan in plans for name in plan.gradients_of)),
        missing={place for plan in plans for place in plan.missing or ()} if all_stop else None,
    )


def _merged(several: Iterable[CaptureSites]) -> CaptureSites:
    """Merges sites: a tensor of which requests want different parts is captured whole, and cut afterwards."""
    merged: CaptureSites = {}
    for sites in several:
        for name, specs in sites.items():
            taken = merged.setdefault(name, {})
            for point, spec in specs.items():
                selects_rows = any(part.axis <= 0 for part in spec.slices)  # of its own request
                alike = taken.get(point) in (None, spec) and not selects_rows
                taken[point] = spec if alike else CaptureSpec()
    return merged


def recording_of(recording: Recording, plan: RequestPlan, joint: RequestPlan, rows: RowRange) -> Recording:
    """Returns what the request of ``plan`` would have recorded alone; it has the rows ``rows`` of the joint pass.

    Raises:
        CannotShare: no axis of a captured tensor is the batch.
    """
    if plan is joint:
        return recording
    own = Recording()
    for name, specs in plan.hook_sites.items():
        own.calls[name] = [_call_of(call, specs, joint.sites[name], rows) for call in recording.calls[name]]
    return own


def _call_of(
    call: RecordedCall, specs: Mapping[Point, CaptureSpec], recorded: Mapping[Point, CaptureSpec], rows: RowRange
) -> RecordedCall:
    """Returns what ``specs`` select in the ``rows`` of ``call``, of which the joint pass ``recorded`` other parts."""
    own = RecordedCall(call.number, call.step)
    own.dtypes, own.without_array = call.dtypes, call.without_array
    for point, path, part in call.entries():
        if point in specs and specs[point].matches(call, path):
            axis = None if part is None else part.row_axis
            part = None if part is None else part.map(partial(rows.of, axis=axis))
            if part is not None and specs[point] != recorded[point]:
                part = specs[point].apply(part.values, "a capture", axis)  # an error shows when the request runs alone
            own.store(point, path, part)
    return own


class MainPass(NamedTuple):
    """The results of the main pass for one request.

    Attributes:
        plan: the plan of the request.
        recording: what the hooks recorded.
        timings: how long each stage took so far.
        outputs: what the model returned, by name; empty where forward stopped early.
        sites: what is captured, by module name and operator address.
        batch: the rows of the request, and where they are.
        targets: what is differentiated: one target, for a top-k target k of them; empty where none is needed.
        source: the output, or the activation of a neuron's module, that the targets are read from.
        input_gradients: by input, ``[batch, ...]``, for a top-k target ``[batch, k, ...]``.
        parameter_gradients: by parameter, the part that is captured; for a top-k target ``[k, ...]``.
    """

    plan: RequestPlan
    recording: Recording
    timings: Timings
    outputs: Outputs
    sites: CaptureSites
    batch: Batch
    targets: Sequence[ResolvedTarget] = ()
    source: Tensor | None = None
    input_gradients: Mapping[str, Tensor] = MappingProxyType({})
    parameter_gradients: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def target_classes(self) -> Tensor | None:
        """The class indices, ``[batch]`` or ``[batch, k]``; None for targets without classes."""
        classes = [classes for target in self.targets if (classes := target.classes) is not None]
        return self._columns(classes) if classes else None

    @property
    def target_values(self) -> Tensor | None:
        """The target scalars, ``[batch]`` or ``[batch, k]``, float64; None without targets."""
        if self.source is None:
            return None
        return self._columns([target.scalars(self.source.detach()).double() for target in self.targets])

    def _columns(self, columns: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(columns), dim=1) if self.plan.scalars else columns[0]

    @property
    def predictions(self) -> tuple[ClassPrediction, ...]:
        """The predicted class of each row; empty for a model without classes."""
        return predicted_classes(self.plan, self.outputs)


def predicted_classes(plan: RequestPlan, outputs: Outputs) -> tuple[ClassPrediction, ...]:
    """Returns the predicted class of each row, from the output ``[batch, classes]`` that is explained by default.

    There is none for a model without classes.
    """
    model = plan.model
    has_classes = outputs and model.labels and not plan.request.generate
    names = explained_outputs(model, outputs, plan.rows) if has_classes else ()
    logits = outputs[names[0]] if len(names) == 1 else None
    if logits is None or logits.ndim != 2:
        return ()
    scores = logits.double()
    indices = scores.argmax(dim=1)  # as the target; the largest of probabilities that are no numbers is the first
    probabilities = scores.softmax(dim=1).amax(dim=1)
    return tuple(
        ClassPrediction(index, model.labels[index] if index < len(model.labels) else "", probability)
        for index, probability in zip(indices.tolist(), probabilities.tolist())
    )


def run_main_pass(plans: Sequence[RequestPlan]) -> list[MainPass]:
    """Runs one forward pass, and the backward passes that are needed, for requests to one model.

    Returns:
        For each plan what its request would get alone; all share their timings.

    Raises:
        CannotShare: the tensors of the pass cannot be split by request.
        CutawayError: one of the requests cannot be answered.
    """
    joint, rows, timings = joint_plan(plans), consecutive([plan.rows for plan in plans]), Timings()
    model, before = joint.model, joint.model.proofs.seconds
    batch = batch_of(joint, plans)
    timings.proof_ms += (model.proofs.seconds - before) * 1000
    leaves = {name: joint.inputs[name].detach().requires_grad_() for name in joint.gradients_of}  # `run` copies them
    parameters = {name: model.module.get_parameter(name).requires_grad_() for name in joint.parameters}
    copies = joint.captures_gradients or joint.edits  # only then may copies of tensors differ from what they copied
    rng_state = torch.get_rng_state() if copies else None
    observed = observing(model.tree, joint.hook_sites, joint.edits, batch=batch, keep_output_of=joint.neuron)
    with observed as recording:
        outputs = run_forward(joint, {**joint.inputs, **leaves}, recording, timings)
        mains = [
            check_forward(plan, _own_outputs(outputs, batch, own), recording, timings, batch._replace(rows=plan.rows))
            for plan, own in zip(plans, rows)
        ]
        arrived = _run_backward(mains, {**leaves, **parameters}, recording, timings)
        copies_diverged = recording.copies_diverged
    outputs = {name: output.detach().clone() for name, output in outputs.items()}
    if copies_diverged and rng_state is not None:
        _refuse_diverged(joint, outputs, rng_state)
    return [
        _collect(main, recording_of(recording, main.plan, joint, own), outputs, arrived, own)
        for main, own in zip(mains, rows)
    ]


def batch_of(plan: RequestPlan, joined: Sequence[RequestPlan] = ()) -> Batch:
    """Returns the rows of a request, or of all that are ``joined`` to it, and where they are in outputs, captures and
    what is edited."""
    sites, attributions = (
        [*plan.hook_sites, *plan.edits],
        [one for each in joined or [plan] for one in each.attributions],
    )
    for target in (plan.request.target, *(one.request.target for one in attributions)):
        with suppress(CutawayError):  # a module that does not exist is refused where the target is resolved
            sites += [plan.model.tree.resolve(target.module)] if isinstance(target, Neuron) else []
    axes = row_axes(plan.model, plan.inputs, sites)
    for layer, named in filter(None, (one.channels for one in attributions)):
        find_channels(plan.model, plan.inputs, axes, layer, named)
    return Batch(plan.rows, axes, row_texts(plan.model, plan.request, plan.inputs))


def _own_outputs(outputs: Outputs, batch: Batch, own: RowRange) -> Outputs:
    """Returns the rows ``own`` of what the model returned for all rows of ``batch``."""
    axes, rows = batch.axes, batch.rows
    return {name: own.of(output, axes.of_output(name, output, rows)) for name, output in outputs.items()}


def run_forward(plan: RequestPlan, inputs: Inputs, recording: Recording, timings: Timings) -> Outputs:
    """Runs the forward pass that ``recording`` observes, with a graph where ``plan`` needs gradients.

    Returns:
        What the model returned, by name; empty where it stopped early, because everything to capture was recorded.
    """
    recording.pending = None if plan.missing is None else set(plan.missing)
    differentiates = plan.differentiates and torch.is_grad_enabled()
    try:
        with timed(timings, "forward_ms"), torch.set_grad_enabled(differentiates), recording.forward():
            return plan.model.run(inputs)
    except StopForward:
        return {}


def check_forward(
    plan: RequestPlan, outputs: Outputs, recording: Recording, timings: Timings, batch: Batch
) -> MainPass:
    """Checks that everything to capture and to edit exists, and resolves the target.

    Args:
        plan: the plan of one request.
        outputs: its rows of what the model returned, by name.
        recording: what the hooks recorded in the forward pass.
        timings: how long the pass took.
        batch: its rows.

    Raises:
        InvalidArgument: a capture, an edit or the target does not fit the model.
    """
    tree, target = plan.model.tree, plan.request.target
    main = MainPass(plan, recording, timings, outputs, resolve_operators(plan, recording), batch)
    refuse_edits(plan, recording, tree)
    refuse_captures(main.sites, recording, tree)
    if not plan.needs_target:
        return main
    with at("target"):
        read_neuron = partial(neuron_output, recording.kept_output)
        targets, source = resolve_target(plan.model, target, outputs, batch, read_neuron)
    return main._replace(targets=targets, source=source)


def _run_backward(mains: Sequence[MainPass], roots: Values, recording: Recording, timings: Timings) -> list[Values]:
    """Runs one backward pass for all requests that need gradients; for a top-k target one for each class.

    Returns:
        For each pass the gradients that arrived at ``roots``, by name. Those inside the model reach the hooks.
    """
    edges = [*map(get_gradient_edge, roots.values()), *recording.gradient_roots]
    sources = [(main.targets, main.source) for main in mains if main.plan.differentiates and main.source is not None]
    if not (edges and sources):
        return []
    if not all(source.requires_grad for _, source in sources):
        text = "the target does not depend differentiably on any tensor whose gradient is requested"
        raise error(Reason.NOT_DIFFERENTIABLE, f"{text}: the model detaches, rounds or indexes", "target")
    calls = [call for calls in recording.calls.values() for call in calls]
    arrived, by_call = [], []
    with timed(timings, "backward_ms"):
        passes = list(zip(*([target.scalars(source) for target in targets] for targets, source in sources)))
        for number, scalars in enumerate(passes):
            if number:
                mains[0].plan.model.give_way(in_graph=True)
            scalar = scalars[0] if len(scalars) == 1 else torch.cat(scalars)
            at_edges = gradients(scalar, edges, again=number + 1 < len(passes))
            arrived.append({name: gradient for name, gradient in zip(roots, at_edges) if gradient is not None})
            if mains[0].plan.scalars:
                by_call.append([call.take_gradients() for call in calls])
        for call, *taken in zip(calls, *by_call) if by_call else ():
            call.put_gradients(stack_gradients(taken))
    return arrived


def _collect(
    main: MainPass, recording: Recording, outputs: Outputs, arrived: Sequence[Values], rows: RowRange
) -> MainPass:
    """Returns ``main`` with the request's own rows of everything that the pass returned, without a graph."""
    plan = main.plan
    reached = {name for gradients in arrived for name in gradients}

    def by_class(name: str) -> list[Tensor]:
        like = next(gradients[name] for gradients in arrived if name in gradients)
        several = [gradients.get(name, torch.zeros_like(like)) for gradients in arrived]
        return [dense(gradient) for gradient in several]  # that of an embedding may be sparse

    def joined(by_class: Sequence[Tensor], dim: int) -> Tensor:
        return torch.stack(list(by_class), dim=dim) if plan.scalars else by_class[0]

    return main._replace(
        recording=recording,
        outputs=_own_outputs(outputs, main.batch._replace(rows=rows.total), rows),
        source=None if main.source is None else main.source.detach().clone(),
        input_gradients={name: rows.of(joined(by_class(name), 1)) for name in plan.gradients_of if name in reached},
        parameter_gradients={
            name: joined([spec.apply(each, f"parameter_gradient:{name}", None).values for each in by_class(name)], 0)
            for name, spec in plan.parameters.items()
            if name in reached
        },
    )


def _refuse_diverged(plan: RequestPlan, outputs: Outputs, rng_state: Tensor) -> None:
    """Compares ``outputs`` with a run without gradient hooks, from the same random numbers.

    Gradient points work on copies. Where the model changes a tensor in place and goes on with its other name, the
    copies change what it computes.

    Raises:
        FailedPrecondition: ``NOT_DIFFERENTIABLE``, where they differ by more than rounding.
    """
    model = plan.model
    with model.kept_rng_state(), observing(model.tree, {}, plan.value_edits, batch=batch_of(plan)) as recording:
        torch.set_rng_state(rng_state)
        with recording.forward():
            unhooked = model.run(plan.inputs)
    if not all(close(unhooked[name].detach(), output, WITHOUT_COPIES) for name, output in outputs.items()):
        text = (
            "the model changes in place a tensor whose gradient is captured or edited, and then uses it under another"
        )
        why = "name, which no backward hook can follow: take another module, or the operation out of place"
        field = "captures" if plan.captures_gradients else "edits"
        raise error(Reason.NOT_DIFFERENTIABLE, f"{text} {why}", field)
