"""Resolves and validates a request: what is captured, edited, differentiated and attributed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import nn

from cutaway.contract import requests
from cutaway.contract.errors import Code, CutawayError, Reason, at, error
from cutaway.contract.requests.captures import names_weights
from cutaway.contract.results import AttributionResult
from cutaway.contract.values import changed, near_names
from cutaway.engine.hooks.capture_spec import CaptureSpec, merge_specs, projection
from cutaway.engine.hooks.edits import NumberedEdit, validate_edit, with_vectors
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.hooks.tokens import with_heads
from cutaway.engine.methods.captum_call import method_of
from cutaway.engine.model.inspected_model import LOGITS, Inputs, InspectedModel
from cutaway.engine.model.module_tree import ModuleTree, glob_matcher, is_glob
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation, Listener
from cutaway.engine.passes.pass_recorder import ResolvedAttribution
from cutaway.engine.passes.targets import number_of_scalars
from cutaway.engine.planning.attribution_setup import (
    by_index,
    differentiable,
    moves_integers,
    needs_logits,
    refuse_impossible,
    resolve_attacks,
    resolve_attribution,
    row_texts,
    with_continuation,
)
from cutaway.engine.planning.embedded_inputs import concept_examples, embedded_inputs, training_rows
from cutaway.engine.runtime.rng import new_seed

Failed: TypeAlias = Mapping[int, AttributionResult]
"""The errors of attributions that cannot be computed, by number in the request."""

NONE_FAILED: Failed = MappingProxyType({})

# Names, globs and operator addresses of captures and edits.

CaptureSites: TypeAlias = dict[str, dict[requests.Point, CaptureSpec]]
"""Capture specs by module name, operator address or operator glob, and by point."""


def resolve_sites(tree: ModuleTree, request: requests.InspectRequest) -> CaptureSites:
    """Returns what is captured, in the order of the request.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``, ``OP_NOT_FOUND``, or ``INVALID_VALUE``: one place is captured twice.
    """
    sites: CaptureSites = {}
    for index, capture in enumerate(request.captures):
        if not capture.parameter:
            spec = _spec(tree, request, capture, f"captures[{index}]")
            with at(spec.field), at("op" if capture.op else "module"):
                places = [_operator(tree, capture.op)] if capture.op else tree.match(capture.module)
            if spec.of_weights and capture.points != (requests.Point.OUTPUT,):
                raise error(Reason.POINT_NOT_FOUND, f"weights of attention have no other point; {_BESIDE}", spec.field)
            for name in places:
                own = spec
                if capture.heads and not spec.of_weights:
                    with at(spec.field):
                        own = replace(spec, slices=with_heads(tree, name, capture, capture.points))
                merge_specs(name, sites.setdefault(name, {}), dict.fromkeys(capture.points, own))
    return sites


def _spec(tree: ModuleTree, request: requests.InspectRequest, capture: requests.Capture, field: str) -> CaptureSpec:
    with at(field), at("reduction"):
        reduce = _reduction(tree, capture)
    of_weights = names_weights(capture.op)
    return CaptureSpec(
        call=capture.call,
        steps=tuple(capture.steps),
        position=capture.position,
        heads=tuple(capture.heads) if of_weights else (),
        of_weights=of_weights,
        path=capture.path,
        slices=tuple(capture.slices),
        reduce=reduce,
        data_type=capture.data_type or request.reply_data_type,
        field=field,
        type_field=f"{field}.data_type" if capture.data_type else "options.reply_data_type",
        exact=bool(capture.parameter) or not is_glob(capture.op or capture.module),
    )


def _reduction(tree: ModuleTree, capture: requests.Capture) -> requests.Reduction | None:
    """Returns the reduction of ``capture``; a projection with the modules and arrays of the model.

    Raises:
        InvalidArgument: ``MODULE_NOT_FOUND``; ``INVALID_VALUE`` for the projection of a gradient.
    """
    if not isinstance(capture.reduce, requests.Project):
        return capture.reduce
    with at("project"):
        if capture.parameter or any(point.is_gradient for point in capture.points):
            raise error(Reason.INVALID_VALUE, "a gradient is not mapped: capture values")
        return projection(tree, capture.reduce)


_BESIDE = "they are computed beside the pass, which uses none: package with --option attention=eager, and name softmax"


def _operator(tree: ModuleTree, address: str) -> str:
    """Returns ``address`` with the module's own name; a glob unchanged.

    Raises:
        InvalidArgument: ``OP_NOT_FOUND`` for text that is no address; ``MODULE_NOT_FOUND``.
    """
    if not is_address(address):
        form = "a module's name, a colon, the operator's name, and which of that name it is: layer3.1:relu#0"
        raise error(Reason.OP_NOT_FOUND, f"{address!r} is no operator's address; one is {form}")
    module, _, rest = address.rpartition(":")
    return address if is_glob(address) or not module else f"{tree.resolve(module)}:{rest}"


def resolve_parameters(tree: ModuleTree, request: requests.InspectRequest) -> dict[str, CaptureSpec]:
    """Returns the parameters whose gradients are captured, by name.

    Raises:
        InvalidArgument: ``PARAMETER_NOT_FOUND``, with the nearest names; ``POINT_NOT_DIFFERENTIABLE``.
    """
    captures = [(f"captures[{index}]", capture) for index, capture in enumerate(request.captures) if capture.parameter]
    by_name = tree.parameters() if captures else {}
    specs: dict[str, CaptureSpec] = {}
    for field, capture in captures:
        if isinstance(capture.reduce, requests.TopElements):
            text = "a parameter's gradient has no place for positions: take it whole"
            raise error(Reason.INVALID_VALUE, text, f"{field}.reduction")
        spec = _spec(tree, request, capture, field)
        with at(f"{field}.parameter"):
            names = _parameter_names(by_name, capture.parameter)
        if any(specs.get(name, spec) != spec for name in names):
            raise error(Reason.INVALID_VALUE, f"a parameter of {capture.parameter!r} is captured in another way", field)
        specs.update(dict.fromkeys(names, spec))
    return specs


def _parameter_names(parameters: Mapping[str, nn.Parameter], pattern: str) -> list[str]:
    """Returns the floating parameters that match ``pattern``, a name or a glob."""
    matches = glob_matcher(pattern) if is_glob(pattern) else pattern.__eq__
    names = [name for name in parameters if matches(name)]
    if not names:
        near = near_names(pattern, parameters, n=3, cutoff=0.4) or list(parameters)[:3]
        hint = f"nearest: {', '.join(near)}" if near else "there is none"
        raise error(Reason.PARAMETER_NOT_FOUND, f"no parameter is named {pattern!r}; {hint}")
    floating = [name for name in names if parameters[name].is_floating_point()]
    if not floating and not is_glob(pattern):
        dtype = parameters[pattern].dtype
        no = "whose gradient no reply can hold" if dtype.is_complex else "and has no gradient"
        raise error(Reason.POINT_NOT_DIFFERENTIABLE, f"{pattern!r} is {dtype} {no}")
    return floating


def resolve_edits(tree: ModuleTree, request: requests.InspectRequest, batch: int) -> dict[str, list[NumberedEdit]]:
    """Returns what is changed, by module name and by operator address; ``batch`` is the number of rows.

    Raises:
        InvalidArgument: the module or operator does not exist, or rows or a permutation do not fit the batch.
    """
    edits: dict[str, list[NumberedEdit]] = {}
    for number, edit in enumerate(request.edits):
        with at(f"edits[{number}]"):
            validate_edit(edit, batch)
            edit = with_vectors(tree, edit)
            for place in _edited_places(tree, edit):
                own = changed(edit, slices=with_heads(tree, place, edit, [edit.point])) if edit.heads else edit
                edits.setdefault(place, []).append((number, own))
    return edits


def _refuse_generation(model: InspectedModel, request: requests.InspectRequest) -> None:
    """Refuses what a generation cannot have, and steps without one.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    asked: dict[str, tuple[bool, bool]] = {}
    for number, capture in enumerate(request.captures):
        is_gradient = bool(capture.parameter) or any(point.is_gradient for point in capture.points)
        asked[f"captures[{number}]"] = (bool(capture.steps), is_gradient)
    for number, edit in enumerate(request.edits):
        asked[f"edits[{number}]"] = (bool(edit.steps), edit.point.is_gradient)
    if request.generate is None:
        for field, (has_steps, _) in asked.items():
            if has_steps:
                raise error(Reason.INVALID_VALUE, "steps are those of a generation: send generate", f"{field}.steps")
        return
    if model.generate is None:
        raise error(Reason.METHOD_INAPPLICABLE, "this model writes no tokens", "generate")
    one_pass = "is of one pass, and a generation has many: send the whole text without generate"
    for name, none in _OF_ONE_PASS.items():
        if getattr(request, name) != none:
            raise error(Reason.INVALID_VALUE, f"it {one_pass}", name)
    for field, (_, is_gradient) in asked.items():
        if is_gradient:
            raise error(Reason.INVALID_VALUE, f"a gradient {one_pass}", field)
    chosen, tokens = request.generate, len(model.labels)
    with at("generate"):
        if tokens and chosen.alternatives > tokens:
            raise error(Reason.INVALID_VALUE, f"{chosen.alternatives}; the model has {tokens} tokens", "alternatives")
        for number, token in enumerate(chosen.stop_tokens):
            if token < 0 or (tokens and token >= tokens):
                raise error(Reason.INVALID_VALUE, f"{token} is none of {tokens} tokens", f"stop_tokens[{number}]")
    if not chosen.draws and (chosen.top_k or chosen.top_p or chosen.min_p):
        raise error(
            Reason.INVALID_VALUE, "tokens are drawn with a temperature above 0: set one", "generate.temperature"
        )


_OF_ONE_PASS: Mapping[str, object] = {
    "input_gradients": None,
    "attributions": (),
    "explain_if": None,
    "dry_run": False,
    "sweep": None,
    "direct": None,
    "attacks": (),
    "concepts": None,
    "influence": None,
    "counterfactual": None,
    "target": requests.PredictedClass(),
    "arguments": {},
}
"""The fields of a request that a generation cannot have, and their values where they ask for nothing."""


def _edited_places(tree: ModuleTree, edit: requests.Edit) -> list[str]:
    if not edit.op:
        with at("module"):
            return tree.match(edit.module)
    with at("op"):
        if is_glob(edit.op):
            raise error(Reason.INVALID_VALUE, f"{edit.op!r}: an edit names one operator, and no glob")
        if names_weights(edit.op):
            raise error(Reason.EDIT_INAPPLICABLE, _BESIDE)
        return [_operator(tree, edit.op)]


@dataclass(frozen=True)
class RequestPlan:
    """A request, resolved and validated for one model.

    Attributes:
        model: the model.
        request: the request.
        inputs: its tensors, ``[batch, ...]`` each.
        cancellation: when the caller stops waiting; no pass begins later.
        sites: what is captured, by module name and by operator address or glob, in the order of the reply; the same
            object for requests that capture the same.
        edits: what is changed, by module name and operator address.
        parameters: parameters whose gradients are returned, by name.
        gradients_of: inputs whose gradients are returned.
        neuron: the module that the target is read from, where the target is a neuron.
        attributions: what is attributed, without those that failed.
        numbers: the number in the request of each of ``attributions``.
        failed: the errors of attributions that cannot be computed, by number in the request.
        seed: the seed of random numbers; None where none was sent and none are drawn.
        missing: the points to capture behind which forward may stop; None where it must run to its end.
        parts: the number of rows of each request, where several were joined.
        unread: the inputs and arguments that the model does not read.
        listener: follows the request while it runs; None if nobody does.
        unasked: outputs that a target needs, and that the request does not ask for.
        attacks: what attacks change: their features are the elements that may change.
        training: rows of the training data; None without influence.
        examples: of concepts and of random sets, by the field of the request that has them; empty without concepts.
    """

    model: InspectedModel
    request: requests.InspectRequest
    inputs: Inputs
    cancellation: Cancellation
    sites: CaptureSites
    edits: dict[str, list[NumberedEdit]]
    parameters: dict[str, CaptureSpec]
    gradients_of: tuple[str, ...]
    neuron: str | None
    attributions: tuple[ResolvedAttribution, ...]
    numbers: tuple[int, ...]
    failed: Mapping[int, AttributionResult]
    seed: int | None
    missing: set[tuple[str, requests.Point]] | None = None
    parts: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()
    listener: Listener | None = None
    unasked: tuple[str, ...] = ()
    attacks: tuple[ResolvedAttribution, ...] = ()
    examples: tuple[tuple[str, Inputs], ...] = ()
    training: Inputs | None = None

    @property
    def rows(self) -> int:
        """The batch size."""
        return next(iter(self.inputs.values())).shape[0]

    @property
    def captures_gradients(self) -> bool:
        """Whether a gradient inside the model is captured."""
        return any(point.is_gradient for specs in self.sites.values() for point in specs)

    @property
    def differentiates(self) -> bool:
        """Whether a backward pass is needed, attributions aside."""
        return bool(self.gradients_of or self.parameters) or self.captures_gradients

    @property
    def value_edits(self) -> dict[str, list[NumberedEdit]]:
        """The edits of activations, without those of gradients."""
        return {name: [edit for edit in edits if not edit[1].point.is_gradient] for name, edits in self.edits.items()}

    @property
    def scalars(self) -> int:
        """How many scalars of each example the target is, with a backward pass each; 0 for one alone."""
        return number_of_scalars(self.request.target, self.inputs)

    @property
    def needs_target(self) -> bool:
        """Whether the target is resolved: also where it was set and is not used, since a wrong one is an error."""
        request = self.request
        uses = (method_of(one).has_target and one.target is None for one in request.attributions)
        return (
            self.differentiates
            or bool(request.sweep or request.direct or request.attacks or request.counterfactual)
            or bool(request.concepts or request.influence)
            or request.target != requests.PredictedClass()
            or any(uses)
        )

    @property
    def hook_sites(self) -> CaptureSites:
        """`sites`, and the modules of attributions, whose calls are only counted."""
        names = (name for attribution in self.attributions for name in attribution.modules)
        return {**{name: {} for name in names}, **self.sites}


@torch.inference_mode(False)
def plan_request(
    model: InspectedModel,
    request: requests.InspectRequest,
    inputs: Inputs,
    cancellation: Cancellation = NEVER_CANCELLED,
    failed: Failed = NONE_FAILED,
    check: Callable[[requests.Attribution], None] = lambda _: None,
) -> RequestPlan:
    """Resolves and validates ``request``; the model runs for no more than `embedded_inputs`.

    Args:
        model: the model.
        request: the request.
        inputs: its tensors, ``[batch, ...]`` each, on the model's device.
        cancellation: when the caller stops waiting.
        failed: the errors of attributions that the request had besides, by their numbers.
        check: raises for an attribution that is not allowed, before anything runs.

    Raises:
        InvalidArgument: with the field at fault.
    """
    # Tensors that were made in inference mode cannot be differentiated.
    inputs = {name: tensor.clone() if tensor.is_inference() else tensor for name, tensor in inputs.items()}
    _refuse_generation(model, request)
    refuse_impossible(request, len(next(iter(inputs.values()))))
    inputs = with_continuation(model, request, inputs)
    unasked = (LOGITS,) if needs_logits(model, request) else ()
    if unasked:
        request = changed(request, arguments={**request.arguments, LOGITS: True})
    with at("target"):
        target = by_index(model, request.target, inputs)
    if target is not request.target:
        request = changed(request, target=target)
    sites = _sites(model, request)
    parameters = resolve_parameters(model.tree, request)
    edits = resolve_edits(model.tree, request, next(iter(inputs.values())).shape[0])
    row_texts(model, request, inputs)  # refuses what is not there
    with at("input_gradients"):
        gradients_of = () if request.input_gradients is None else differentiable(model, inputs, request.input_gradients)
    draws = any(method_of(attribution).uses_randomness or attribution.is_judged for attribution in request.attributions)
    draws |= any(getattr(attack, "random_start", False) for attack in request.attacks)
    draws |= request.generate is not None and request.generate.draws
    seed = new_seed() if draws and request.seed is None else request.seed
    allowed, failed = _allowed(request, failed, check)
    attributions = {}
    chosen = any(map(moves_integers, allowed.values()))
    embedded = embedded_inputs(model, inputs, cancellation, request.arguments) if chosen else frozenset()
    for number, attribution in allowed.items():
        try:
            with at(f"attributions[{number}]"):
                asked = _with_index(model, attribution, inputs)
                attributions[number] = resolve_attribution(model, asked, inputs, edits, seed, embedded)
        except CutawayError as failure:
            failed[number] = in_place(request, attribution, failure)
    if failed:
        request = replace(request, attributions=tuple(allowed[number] for number in attributions))
    with at("target.neuron.module"):
        neuron = model.tree.resolve(request.target.module) if isinstance(request.target, requests.Neuron) else None
    explained = (tuple(attributions.values()), tuple(attributions), failed)
    resolved = (sites, edits, parameters, gradients_of, neuron, *explained, seed)
    attacks = tuple(resolve_attacks(model, request, inputs, edits, seed))
    others = concept_examples(model, request, inputs), training_rows(model, request, inputs)
    plan = RequestPlan(model, request, inputs, cancellation, *resolved, None, (), (), None, unasked, attacks, *others)
    stops = request.omit_predictions and not (plan.needs_target or request.attributions or request.compare)
    return replace(plan, missing=_missing(sites)) if stops else plan


def _allowed(
    request: requests.InspectRequest,
    failed: Failed,
    check: Callable[[requests.Attribution], None],
) -> tuple[dict[int, requests.Attribution], dict[int, AttributionResult]]:
    """Returns the attributions that ``check`` allows, and the errors of the others beside ``failed``, by number."""
    allowed, errors = {}, dict(failed)
    numbers = (number for number in itertools.count() if number not in failed)
    for number, attribution in zip(numbers, request.attributions):
        try:
            with at(f"attributions[{number}]"):
                check(attribution)
            allowed[number] = attribution
        except CutawayError as failure:
            errors[number] = in_place(request, attribution, failure)
    return allowed, errors


def _with_index(model: InspectedModel, attribution: requests.Attribution, inputs: Inputs) -> requests.Attribution:
    with at("target"):
        target = None if attribution.target is None else by_index(model, attribution.target, inputs)
    return attribution if target is attribution.target else replace(attribution, target=target)


def _sites(model: InspectedModel, request: requests.InspectRequest) -> CaptureSites:
    """Returns what is captured; the same object for the same captures, as long as these are few and recent."""
    captured = (request.captures, request.reply_data_type)
    try:
        sites = model.recent.get(captured)
    except TypeError:  # arrays of a projection have no hash
        return resolve_sites(model.tree, request)
    if sites is None:
        sites = resolve_sites(model.tree, request)
        if len(sites) <= MOST_PLACES:  # globs of large models would take megabytes each
            if len(model.recent) >= MOST_RECENT:
                model.recent.clear()
            model.recent[captured] = sites
    return sites


MOST_RECENT, MOST_PLACES = 256, 256


def in_place(
    request: requests.InspectRequest, attribution: requests.Attribution, failure: CutawayError
) -> AttributionResult:
    """Returns ``failure`` in the place of an attribution.

    Raises:
        CutawayError: ``failure``, unless the request takes such errors in their places.
    """
    is_own = failure.code in _CODES_OF_ONE or failure.reason in _REASONS_OF_ONE
    if not (request.attribution_errors_in_place and is_own):
        raise failure
    return AttributionResult.failed(type(attribution).__name__, getattr(attribution, "layer", ""), failure)


_CODES_OF_ONE = (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)
_REASONS_OF_ONE = (Reason.OUT_OF_MEMORY, Reason.LIMIT_EXCEEDED)
"""The errors of an attribution that say nothing about the rest of its request, by their codes or their reasons."""


def without(plan: RequestPlan, failures: Mapping[int, CutawayError]) -> RequestPlan:
    """Returns ``plan`` without some attributions, by position among those left; their errors are in their places.

    Raises:
        CutawayError: the first of ``failures``, unless the request takes such errors in their places.
    """
    if not failures:
        return plan
    asked, kept = plan.request.attributions, [each for each in range(len(plan.attributions)) if each not in failures]
    failed = {plan.numbers[each]: in_place(plan.request, asked[each], why) for each, why in failures.items()}
    return replace(
        plan,
        request=replace(plan.request, attributions=tuple(asked[each] for each in kept)),
        attributions=tuple(plan.attributions[each] for each in kept),
        numbers=tuple(plan.numbers[each] for each in kept),
        failed={**plan.failed, **failed},
    )


def _missing(sites: CaptureSites) -> set[tuple[str, requests.Point]] | None:
    """Returns all points to capture, if each names its call; else only the end of forward shows that all were seen."""
    if any(is_glob(name) or spec.call is None for name, specs in sites.items() for spec in specs.values()):
        return None
    return {(name, point) for name, specs in sites.items() for point in specs} or None
