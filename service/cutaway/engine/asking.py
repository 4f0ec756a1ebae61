"""One attribution that was asked for: looked at before anything runs, then made definite for a batch."""

from __future__ import annotations

from torch import nn

from cutaway.engine.baselines import baselines, distributions
from cutaway.engine.features import Features, features
from cutaway.engine.methods import TABLE, method_of
from cutaway.engine.metrics import refuse_metric
from cutaway.engine.modules import ModuleTree
from cutaway.engine.subject import Inputs, Subject, dtype_text
from cutaway.engine.targets import Chosen
from cutaway.engine.tunnel import refuse_noise
from cutaway.engine.witness import Changes, Question
from cutaway.errors import Reason, at, error
from cutaway.requests import (
    AtLayer,
    Attribution,
    Difference,
    Expectation,
    LayerAttribution,
    LayerIntegratedGradients,
    NeuronAttribution,
    PathAttribution,
    Perturbation,
    Point,
    field_name,
)


def validate(subject: Subject, attribution: Attribution, inputs: Inputs, edits: Changes) -> None:
    """Look at all that can be known of ``attribution`` before anything has run.

    Raises:
        InvalidArgument: with the field at fault.
    """
    field = field_name(type(attribution))
    method = method_of(attribution)
    if isinstance(attribution, AtLayer):
        with at(f"{field}.layer"):
            _refuse_edited_layer(subject.tree.resolve(attribution.layer), edits)
    if isinstance(attribution, NeuronAttribution):
        with at(f"{field}.neuron.module"):
            subject.tree.resolve(attribution.neuron.module)
        if method.of_neuron and attribution.target is not None:
            raise error(Reason.INVALID_VALUE, "the neuron is what is explained: leave the target out", "target")
    if _is_at_layer_alone(attribution) and attribution.inputs:
        raise error(Reason.INVALID_VALUE, "a layer method explains the layer: leave the inputs out", "inputs")
    names = () if _is_at_layer_alone(attribution) else explained(subject, inputs, attribution)
    begin(attribution, inputs, names)
    with at(field):
        _refuse_bound(attribution, method.adds_up(attribution))
        method.refuse(subject, attribution, inputs, edits)
    _refuse_noise_and_metrics(subject, attribution, inputs)


def _refuse_noise_and_metrics(subject: Subject, attribution: Attribution, inputs: Inputs) -> None:
    names = explained(subject, inputs, attribution) if attribution.noise or attribution.metrics else ()
    if attribution.noise is not None:
        with at("noise_tunnel"):
            refuse_noise(TABLE[type(attribution)], attribution, inputs, names)
    for index, metric in enumerate(attribution.metrics):
        with at(f"metrics[{index}]"):
            refuse_metric(metric, attribution, inputs, names)


def _refuse_bound(attribution: Attribution, adds_up: bool) -> None:
    if isinstance(attribution, PathAttribution) and attribution.max_delta is not None and not adds_up:
        raise error(
            Reason.INVALID_VALUE,
            "the attributions of this method need not add up to anything, so nothing can be bounded: leave it out",
            "path.max_delta",
        )


def _refuse_edited_layer(layer: str, edits: Changes) -> None:
    if any(edit.point is Point.GRAD_OUTPUT for _, edit in edits.get(layer, ())):
        raise error(
            Reason.EDIT_INAPPLICABLE,
            f"the gradient at {layer!r} is edited and explained at once: Captum would read it unedited",
        )


def _is_at_layer_alone(attribution: Attribution) -> bool:
    """Whether the inputs are nothing that the explanation goes back to, or begins at."""
    begins = isinstance(attribution, (PathAttribution, Difference, Expectation))
    return isinstance(attribution, LayerAttribution) and not begins


def question(
    subject: Subject,
    attribution: Attribution,
    inputs: Inputs,
    chosen: Chosen,
    edits: Changes,
    seed: int | None = None,
) -> Question:
    """``attribution``, made definite for ``inputs``."""
    names = explained(subject, inputs, attribution)
    return Question(
        subject,
        attribution,
        inputs,
        names,
        chosen,
        layer=subject.tree.resolve(attribution.layer) if isinstance(attribution, AtLayer) else "",
        baselines=begin(attribution, inputs, names),
        edits=tuple(edit for numbered in edits.values() for _, edit in numbered),
        features=features(attribution, inputs) if isinstance(attribution, Perturbation) else Features(),
        seed=seed if method_of(attribution).draws or attribution.metrics else None,
    )


def begin(attribution: Attribution, inputs: Inputs, names: tuple[str, ...]) -> Inputs:
    """What the inputs ``names`` are compared with: for each a baseline of its shape, or samples of a distribution.
    Nothing, for methods that compare with nothing.

    Raises:
        InvalidArgument: with the field at fault.
    """
    if isinstance(attribution, Perturbation):
        return features(attribution, inputs).baselines
    with at(field_name(type(attribution))):
        if isinstance(attribution, PathAttribution):
            with at("path"):
                return baselines(attribution.baselines, inputs, names)
        if isinstance(attribution, Difference):
            return baselines(attribution.baselines, inputs, names)
        if isinstance(attribution, Expectation):
            return distributions(attribution.baselines, inputs, names)
    return {}


def explained(subject: Subject, inputs: Inputs, attribution: Attribution) -> tuple[str, ...]:
    """The inputs that are explained; of a layer method those that walk its path, or that Captum differentiates from.

    Raises:
        InvalidArgument: an input that was not sent; or one of whole numbers, between which there is no path.
    """
    if isinstance(attribution, Perturbation):
        return features(attribution, inputs).explained
    # Integrated gradients of a layer walk between the layer's values: whole numbers can stand at both ends.
    if _is_at_layer_alone(attribution) or isinstance(attribution, LayerIntegratedGradients):
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
