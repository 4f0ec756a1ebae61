"""Captum's answer to a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cutaway.engine.evidence import layer_value_name
from cutaway.engine.methods import TABLE
from cutaway.engine.witness import Question, Values
from cutaway.errors import CutawayError, Reason, error


def explain(question: Question, forward: Callable[..., Tensor]) -> Values:
    """Captum's answer to ``question``, with the model called through ``forward``.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, where Captum cannot do this.
        FailedPrecondition: ``NOT_DIFFERENTIABLE``, where no gradient connects target and input or layer.
    """
    method = TABLE[type(question.request)]
    layer = (question.subject.tree[question.layer],) if question.layer else ()
    options = method.options(question)
    called = forward
    if method.differentiates and question.chosen.indices is not None:
        options["target"] = question.chosen.indices
    elif method.differentiates:  # Captum knows targets that are elements of an output; of others it gets the scalar

        def called(*tensors: Tensor) -> Tensor:
            return question.chosen.of(forward(*tensors))

    with _translated(question):
        answer = method.captum(called, *layer, **method.settings(question.request)).attribute(
            _leaves(question), additional_forward_args=question.further or None, **options
        )
    return _named(question, answer)


def _leaves(question: Question) -> tuple[Tensor, ...]:
    fresh = tuple(tensor.detach().clone() for tensor in question.arguments)
    for tensor in fresh:
        if tensor.is_floating_point():
            tensor.requires_grad_()
    return fresh


def _named(question: Question, answer: Any) -> Values:
    several = isinstance(answer, (tuple, list))
    tensors = [tensor.detach() for tensor in (answer if several else (answer,))]
    if not question.layer:
        return dict(zip(question.explained, tensors))
    paths = [f"[{index}]" for index in range(len(tensors))] if several else [""]
    return {layer_value_name(question.layer, path): tensor for path, tensor in zip(paths, tensors)}


@contextmanager
def _translated(question: Question) -> Iterator[None]:
    method = type(question.request).__name__
    where = f"the layer {question.layer!r}" if question.layer else f"the input {', '.join(question.explained)}"
    try:
        yield
    except (CutawayError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as failure:
        text = (str(failure).strip().splitlines() or [type(failure).__name__])[0][:300]
        if "does not require grad" in text or "appears to not have been used in the graph" in text:
            raise error(
                Reason.NOT_DIFFERENTIABLE,
                f"{method}: the target does not depend on {where} through differentiable operations",
            ) from failure
        raise error(Reason.METHOD_INAPPLICABLE, f"Captum's {method} cannot be applied to {where}: {text}") from failure
