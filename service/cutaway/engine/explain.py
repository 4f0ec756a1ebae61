"""Captum's answer to a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from cutaway.engine.draws import Aside, drawing
from cutaway.engine.evidence import layer_value_name
from cutaway.engine.memory import ran_out
from cutaway.engine.methods import method_of
from cutaway.engine.shortcuts import shortened
from cutaway.engine.witness import Question, Values
from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import LayerAttribution, NeuronAttribution


def explain(question: Question, forward: Callable[..., Tensor]) -> Values:
    """Captum's answer to ``question``, with the model called through ``forward``.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, where Captum cannot do this.
        FailedPrecondition: ``NOT_DIFFERENTIABLE``, where no gradient connects target and input or layer.
    """
    method = method_of(question.request)
    layer = (question.subject.tree[question.module],) if question.module else ()
    options = method.options(question)
    called = forward
    if method.of_neuron:
        options["neuron_selector"] = question.request.neuron.index  # type: ignore[attr-defined]
    elif method.differentiates and question.chosen.indices is not None:
        options["target"] = question.chosen.indices
    elif method.differentiates:  # Captum knows targets that are elements of an output; of others it gets the scalar

        def called(*tensors: Tensor) -> Tensor:
            return question.chosen.of(forward(*tensors))

    with _translated(question), method.prepared(question), drawing(question.seed, question.subject.device) as aside:
        if question.seed is not None:
            called = _beside(aside, called)
        if method.applies_to_modules:
            called = _Module(question.subject.module, called)
        explainer = shortened(method.captum(called, *layer, **method.settings(question.request)))
        answer = explainer.attribute(_leaves(question), additional_forward_args=question.further or None, **options)
    return _named(question, answer)


def _beside(aside: Aside, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``forward``, drawing its random numbers aside from Captum's."""

    def apart(*tensors: Tensor) -> Tensor:
        with aside():
            return forward(*tensors)

    return apart


def _leaves(question: Question) -> tuple[Tensor, ...]:
    fresh = tuple(tensor.detach().clone() for tensor in question.arguments)
    for tensor in fresh:
        if tensor.is_floating_point() and not method_of(question.request).perturbs:
            tensor.requires_grad_()
    return fresh


class _Module(nn.Module):
    """A function of ``model``, as a module: where Captum hooks what is inside, it must find the model there."""

    def __init__(self, model: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = forward

    def forward(self, *tensors: Tensor) -> Tensor:
        """What the function returns."""
        return self._function(*tensors)


def _named(question: Question, answer: Any) -> Values:
    several = isinstance(answer, (tuple, list))
    tensors = [tensor.detach() for tensor in (answer if several else (answer,))]
    if not isinstance(question.request, LayerAttribution):
        _refuse_empty(question, tensors)
        return dict(zip(question.explained, tensors))
    paths = [f"[{index}]" for index in range(len(tensors))] if several else [""]
    return {layer_value_name(question.layer, path): tensor for path, tensor in zip(paths, tensors)}


def _refuse_empty(question: Question, tensors: Sequence[Tensor]) -> None:
    """Guided Grad-CAM answers nothing, with a warning, where a layer's map cannot be scaled to an input."""
    for name, tensor in zip(question.explained, tensors):
        if not tensor.numel() and question.inputs[name].numel():
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"what {question.layer!r} returns cannot be scaled to the input {name!r}, of shape "
                f"{list(question.inputs[name].shape)}: both need the same axes behind batch and channels",
            )


@contextmanager
def _translated(question: Question) -> Iterator[None]:
    method = type(question.request).__name__
    where = f"the layer {question.layer!r}" if question.layer else f"the input {', '.join(question.explained)}"
    others = "" if question.layer or len(question.explained) < 2 else ": name in inputs those that it depends on"
    try:
        yield
    except CutawayError as failure:
        if failure.reason != Reason.MODEL_FAILED or "leaf Variable that requires grad" not in failure.message:
            raise
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {method} puts values of its own in place of what {where} returns, which the model then changes "
            "in place: explain the module that does so, or build it with inplace=False",
        ) from failure
    except Exception as failure:
        if ran_out(failure):
            raise
        text = (str(failure).strip().splitlines() or [type(failure).__name__])[0][:300]
        if "does not require grad" in text or "appears to not have been used in the graph" in text:
            raise error(
                Reason.NOT_DIFFERENTIABLE,
                f"{method}: {_explained(question)} does not depend on {where} through differentiable operations"
                f"{others}",
            ) from failure
        raise error(Reason.METHOD_INAPPLICABLE, f"Captum's {method} cannot be applied to {where}: {text}") from failure


def _explained(question: Question) -> str:
    if not isinstance(question.request, NeuronAttribution):
        return "the target"
    neuron = f"the neuron {list(question.request.neuron.index)} of {question.module!r}"
    return neuron if method_of(question.request).of_neuron else f"the target, by way of {neuron},"
