"""Calls Captum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import LayerAttribution, NeuronAttribution, Point
from cutaway.engine.methods.captum_patches import quicker_captum, with_single_root
from cutaway.engine.methods.table import method_of
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.reference_inputs import layer_value_name
from cutaway.engine.passes.targets import neuron_selector
from cutaway.engine.references.observation import module_calls
from cutaway.engine.runtime.interruption import is_out_of_memory
from cutaway.engine.runtime.rng import ModelStream, seeded


def explain(problem: AttributionProblem, forward: Callable[..., Tensor]) -> Values:
    """Returns Captum's attributions.

    Args:
        problem: the attribution problem.
        forward: runs the model on the explained inputs, then the others; returns the tensor with the target.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: Captum cannot apply the method to this model or input.
        FailedPrecondition: ``NOT_DIFFERENTIABLE``: no gradient connects the target with the input or layer.
    """
    method = method_of(problem.request)
    layer: tuple[Any, ...] = (problem.model.tree[problem.module],) if problem.module else ()
    if problem.further_layers:
        layer = ([problem.model.tree[name] for name in problem.layers],)
    options = method.attribute_arguments(problem)
    called = forward
    if isinstance(problem.request, NeuronAttribution):
        options["neuron_selector"] = _neuron_selector(problem, problem.request)
    if method.has_target and method.takes_target and (target := problem.target.in_captums_words) is not None:
        options["target"] = target
    elif method.has_target:  # Captum's targets are elements of an output; for others it gets the scalar

        def called(*tensors: Tensor) -> Tensor:
            return problem.target.scalars(forward(*tensors))

    with (
        _translated_errors(problem),
        method.model_context(problem),
        quicker_captum(),
        seeded(problem.seed, problem.model.device) as model_stream,
    ):
        if problem.seed is not None:
            called = _with_own_stream(model_stream, called)
        if method.applies_to_modules:
            called = _Module(problem.model.module, called)
        explainer = with_single_root(method.captum(called, *layer, **method.init_arguments(problem.request)))
        additional = problem.additional_inputs or None
        result = explainer.attribute(_leaves(problem), additional_forward_args=additional, **options)
    return _named(problem, result)


def _neuron_selector(problem: AttributionProblem, request: NeuronAttribution) -> tuple[slice | int, ...]:
    calls = module_calls(problem) if request.neuron.slices else ()
    output = next(iter(calls[-1].at(Point.OUTPUT).values())) if calls else None
    return request.neuron.index if output is None else neuron_selector(request.neuron, output)


def _with_own_stream(model_stream: ModelStream, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns ``forward`` with random numbers from another stream than Captum's."""

    def wrapped(*tensors: Tensor) -> Tensor:
        with model_stream():
            return forward(*tensors)

    return wrapped


def _leaves(problem: AttributionProblem) -> tuple[Tensor, ...]:
    """Returns copies of the explained inputs, which require gradients if the method uses any."""
    leaves = tuple(tensor.detach().clone() for tensor in problem.arguments)
    for tensor in leaves:
        if tensor.is_floating_point() and not method_of(problem.request).forward_only:
            tensor.requires_grad_()
    return leaves


class _Module(nn.Module):
    """A module that calls ``forward``, for methods of Captum that hook the modules inside ``model``."""

    def __init__(self, model: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = forward

    def forward(self, *tensors: Tensor) -> Tensor:
        """Returns the result of the function."""
        return self._function(*tensors)


def _named(problem: AttributionProblem, result: Any) -> Values:
    if problem.further_layers:
        each = (_named(replace(problem, layer=name, further_layers=()), of_layer)
                for name, of_layer in zip(problem.layers, result))  # fmt: skip
        return {name: tensor for values in each for name, tensor in values.items()}
    several = isinstance(result, (tuple, list))
    tensors = [tensor.detach() for tensor in (result if several else (result,))]
    if not isinstance(problem.request, LayerAttribution):
        _refuse_empty(problem, tensors)
        return dict(zip(problem.explained, tensors))
    paths = [f"[{index}]" for index in range(len(tensors))] if several else [""]
    return {layer_value_name(problem.layer, path): tensor for path, tensor in zip(paths, tensors)}


def _refuse_empty(problem: AttributionProblem, tensors: Sequence[Tensor]) -> None:
    """Raises where Guided Grad-CAM returns nothing, with a warning: a layer's map cannot be scaled to an input."""
    for name, tensor in zip(problem.explained, tensors):
        if not tensor.numel() and problem.inputs[name].numel():
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the output of {problem.layer!r} cannot be scaled to the input {name!r}, of shape "
                f"{list(problem.inputs[name].shape)}: both need the same axes behind batch and channels",
            )


@contextmanager
def _translated_errors(problem: AttributionProblem) -> Iterator[None]:
    method = type(problem.request).__name__
    where = f"the layer {problem.layer!r}" if problem.layer else f"the input {', '.join(problem.explained)}"
    others = "" if problem.layer or len(problem.explained) < 2 else ": name in inputs only those that it depends on"
    try:
        yield
    except CutawayError as failure:
        if failure.reason != Reason.MODEL_FAILED or "leaf Variable that requires grad" not in failure.message:
            raise
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {method} replaces the output of {where}, which the model then changes in place: explain the "
            "module that does so, or build it with inplace=False",
        ) from failure
    except Exception as failure:
        if is_out_of_memory(failure):
            raise
        text = (str(failure).strip().splitlines() or [type(failure).__name__])[0][:300]
        if "does not require grad" in text or "appears to not have been used in the graph" in text:
            raise error(
                Reason.NOT_DIFFERENTIABLE,
                f"{method}: {_explained(problem)} does not depend on {where} through differentiable operations{others}",
            ) from failure
        raise error(Reason.METHOD_INAPPLICABLE, f"Captum's {method} cannot be applied to {where}: {text}") from failure


def _explained(problem: AttributionProblem) -> str:
    if not isinstance(problem.request, NeuronAttribution):
        return "the target"
    index = problem.request.neuron.index
    neuron = f"the neuron {list(index) if index else 'block'} of {problem.module!r}"
    return neuron if method_of(problem.request).explains_neuron else f"the target, by way of {neuron},"
