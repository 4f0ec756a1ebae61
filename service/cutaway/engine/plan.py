"""From what was asked to what must be done: globs resolved, inputs checked, layers found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from cutaway.engine import wanted
from cutaway.engine.draws import fresh_seed
from cutaway.engine.features import baseline, features
from cutaway.engine.methods import TABLE
from cutaway.engine.modules import ModuleTree, is_glob
from cutaway.engine.subject import Inputs, Subject, dtype_text
from cutaway.engine.tap import Numbered
from cutaway.engine.targets import Chosen
from cutaway.engine.wishes import Wish
from cutaway.engine.witness import Question
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    AtLayer,
    Attribution,
    Deconvolution,
    GuidedBackprop,
    GuidedGradCam,
    InspectRequest,
    LayerAttribution,
    LayerConductance,
    LayerIntegratedGradients,
    PathAttribution,
    Perturbation,
    Point,
    PredictedClass,
    Quadrature,
    field_name,
)

MAX_STEPS = 4096

MAX_NODES = 1024
"""Of Gauss-Legendre, whose nodes are eigenvalues: 1024 take a tenth of a second to find, 4096 half a minute."""

Edits: TypeAlias = Mapping[str, Sequence[Numbered]]
"""Edits by module name and operator address."""


@dataclass(frozen=True)
class Plan:
    """What one request needs.

    Attributes:
        taps: module names, and operator addresses or globs, to what is wanted at their points, in the order of the
            reply.
        edits: what is changed, by module name and operator address.
        parameters: parameters whose gradients are returned, by name.
        gradients_of: inputs whose gradients are returned.
        differentiates: whether a backward pass is needed for captures or gradients.
        missing: what forward may stop behind; ``None`` where it must run to its end.
        seed: what random numbers are drawn from; ``None`` where there is none and nothing draws.
    """

    taps: dict[str, dict[Point, Wish]]
    edits: dict[str, list[Numbered]]
    parameters: dict[str, Wish]
    gradients_of: tuple[str, ...]
    differentiates: bool
    missing: set[tuple[str, Point]] | None
    seed: int | None


def plan(subject: Subject, request: InspectRequest, inputs: Inputs) -> Plan:
    """Resolve what ``request`` asks of ``subject``.

    Raises:
        InvalidArgument: with the field at fault, before anything has run.
    """
    taps = wanted.taps(subject.tree, request)
    parameters = wanted.parameters(subject.module, request)
    edits = wanted.edits(subject.tree, request, rows(inputs))
    with at("input_gradients"):
        gradients_of = (
            () if request.input_gradients is None else differentiable(subject, inputs, request.input_gradients)
        )
    for index, attribution in enumerate(request.attributions):
        with at(f"attributions[{index}]"):
            _validate(subject, attribution, inputs, edits)
    in_taps = any(point.is_gradient for points in taps.values() for point in points)
    differentiates = bool(gradients_of or parameters) or in_taps
    stops = request.omit_predictions and not (
        differentiates or request.attributions or request.compare or request.target != PredictedClass()
    )
    missing = _missing(taps) if stops else None
    return Plan(taps, edits, parameters, gradients_of, differentiates, missing, _seed(request))


def rows(inputs: Inputs) -> int:
    """The batch size."""
    return next(iter(inputs.values())).shape[0]


def _missing(taps: dict[str, dict[Point, Wish]]) -> set[tuple[str, Point]] | None:
    """Everything that is wanted, where it is known how often; else nobody can tell when it has been seen."""
    if any(is_glob(name) or wish.call is None for name, wishes in taps.items() for wish in wishes.values()):
        return None
    return {(name, point) for name, wishes in taps.items() for point in wishes} or None


def _seed(request: InspectRequest) -> int | None:
    draws = any(TABLE[type(attribution)].draws for attribution in request.attributions)
    return fresh_seed() if draws and request.seed is None else request.seed


def question(
    subject: Subject,
    attribution: Attribution,
    inputs: Inputs,
    chosen: Chosen,
    edits: Edits,
    seed: int | None = None,
) -> Question:
    """``attribution``, made definite for ``inputs``."""
    changes = tuple(edit for numbered in edits.values() for _, edit in numbered)
    seed = seed if TABLE[type(attribution)].draws else None
    if isinstance(attribution, Perturbation):
        parts = features(attribution, inputs)
        return Question(
            subject, attribution, inputs, parts.explained, chosen, "", parts.baselines, changes, parts, seed
        )
    layer = subject.tree.resolve(attribution.layer) if isinstance(attribution, AtLayer) else ""
    explained = _explained(subject, inputs, attribution)
    baselines = _baselines(attribution, inputs, explained) if isinstance(attribution, PathAttribution) else {}
    return Question(subject, attribution, inputs, explained, chosen, layer, baselines, changes)


def _explained(subject: Subject, inputs: Inputs, attribution: Attribution) -> tuple[str, ...]:
    """The inputs that are explained; of a layer method those that walk its path, or that Captum differentiates from.

    Raises:
        InvalidArgument: an input that was not sent; or one of whole numbers, between which there is no path.
    """
    at_ends = isinstance(attribution, LayerIntegratedGradients)  # it walks between the layer's values
    if isinstance(attribution, LayerAttribution) and (at_ends or not isinstance(attribution, PathAttribution)):
        _refuse_unknown(inputs, attribution.inputs)
        floating = tuple(name for name, tensor in inputs.items() if tensor.is_floating_point())
        return attribution.inputs or floating or tuple(inputs)
    return differentiable(subject, inputs, attribution.inputs)


def _refuse_unknown(inputs: Inputs, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in inputs:
            raise error(Reason.INPUT_UNKNOWN, f"no input {name!r} was sent; there are {', '.join(inputs)}", "inputs")


def differentiable(subject: Subject, inputs: Inputs, names: tuple[str, ...]) -> tuple[str, ...]:
    """``names``, or where there are none every floating input; each has a gradient.

    Raises:
        InvalidArgument: ``INPUT_UNKNOWN`` or ``INPUT_NOT_DIFFERENTIABLE``.
    """
    _refuse_unknown(inputs, names)
    chosen = names or tuple(name for name, tensor in inputs.items() if tensor.is_floating_point())
    whole = [name for name in chosen or inputs if not inputs[name].is_floating_point()]
    if whole:
        raise error(
            Reason.INPUT_NOT_DIFFERENTIABLE,
            f"the input {whole[0]!r} is {dtype_text(inputs[whole[0]])} and has no gradient"
            + embedding_hint(subject.tree),
            "inputs",
        )
    return chosen


def embedding_hint(tree: ModuleTree) -> str:
    """Where gradients begin in a model of token ids, in words."""
    embeddings = [name for name, module in tree.modules.items() if isinstance(module, nn.Embedding)]
    if not embeddings:
        return ""
    return f"; take the gradient where numbers begin: GRAD_OUTPUT of {embeddings[0]!r}"


def _validate(subject: Subject, attribution: Attribution, inputs: Inputs, edits: Edits) -> None:
    if isinstance(attribution, Perturbation):
        features(attribution, inputs)
        return
    if isinstance(attribution, AtLayer):
        with at(f"{field_name(type(attribution))}.layer"):
            layer = subject.tree.resolve(attribution.layer)
            if any(edit.point is Point.GRAD_OUTPUT for _, edit in edits.get(layer, ())):
                raise error(
                    Reason.EDIT_INAPPLICABLE,
                    f"the gradient at {layer!r} is edited and explained at once: Captum would read it unedited",
                )
    if isinstance(attribution, LayerAttribution) and not isinstance(attribution, PathAttribution):
        if attribution.inputs:
            raise error(Reason.INVALID_VALUE, "a layer method explains the layer: leave the inputs out", "inputs")
        return
    if isinstance(attribution, (GuidedBackprop, Deconvolution, GuidedGradCam)):
        _refuse_edited_rectifiers(subject, edits)
    explained = _explained(subject, inputs, attribution)
    if isinstance(attribution, PathAttribution):
        with at(field_name(type(attribution))):
            _validate_path(attribution)
            _baselines(attribution, inputs, explained)


def _refuse_edited_rectifiers(subject: Subject, edits: Edits) -> None:
    for name, numbered in edits.items():
        gradient = any(edit.point.is_gradient for _, edit in numbered)
        if gradient and isinstance(subject.tree.modules.get(name), nn.ReLU):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at the nn.ReLU {name!r} is edited, and the method overrides it: it can do one only",
            )


def _validate_path(request: PathAttribution) -> None:
    # A conductance is made of differences between steps: there is one point more than there are steps.
    one = request.quadrature is Quadrature.GAUSS_LEGENDRE or isinstance(request, LayerConductance)
    fewest = 1 if one else 2
    most = MAX_NODES if request.quadrature is Quadrature.GAUSS_LEGENDRE else MAX_STEPS
    if not fewest <= request.n_steps <= most:
        raise error(
            Reason.INVALID_VALUE,
            f"{request.n_steps} steps; {request.quadrature.name} takes {fewest} to {most}",
            "path.n_steps",
        )


def _baselines(request: PathAttribution, inputs: Inputs, explained: tuple[str, ...]) -> Inputs:
    with at("path.baselines.by_input"):
        for name in request.baselines:
            if name not in explained:
                raise error(
                    Reason.INPUT_UNKNOWN,
                    f"a baseline for {name!r}, which is not explained; explained: {', '.join(explained)}",
                    name,
                )
        return {name: baseline(name, request.baselines.get(name, 0.0), inputs[name]) for name in explained}
