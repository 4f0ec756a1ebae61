"""The table of attribution methods: a new method is a new row.

A row says which Captum class answers it, with which arguments; which reference from raw hook outputs its answer must
equal, and how closely; and whether its attributions must add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from captum import attr
from torch import Tensor

from cutaway.engine import references
from cutaway.engine.references import Evidence, Reference, layer_value_name
from cutaway.engine.witness import Question, Values
from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import (
    Attribution,
    InputXGradient,
    IntegratedGradients,
    LayerActivation,
    LayerGradCam,
    LayerGradientXActivation,
    Saliency,
)


class Tolerances(NamedTuple):
    """The largest relative error that still agrees, by the data type that the model computes in."""

    float64: float
    float32: float
    bfloat16: float
    float16: float

    def of(self, dtype: torch.dtype) -> float:
        """The tolerance for ``dtype``."""
        return float(getattr(self, str(dtype).removeprefix("torch."), self.float32))


ONE_PASS = Tolerances(float64=1e-9, float32=1e-4, bfloat16=5e-2, float16=1e-2)

# Captum keeps the weights of its quadrature in float32, whatever the input's data type.
PATH = Tolerances(float64=1e-6, float32=1e-3, bfloat16=1e-1, float16=2e-2)

CAPTUM_ROWS_A_PASS = 64
"""Captum walks a path in passes of about this many rows, so that memory does not grow with the number of steps."""


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True)
class Method:
    """One row.

    Attributes:
        captum: the class that answers.
        reference: what the answer must equal, from raw hook outputs.
        points: which inputs must be visited to know it.
        identity: the same in words.
        settings: arguments of the Captum class, from the question.
        options: arguments of its ``attribute``, from the question.
        differentiates: whether the method has a target.
        adds_up: whether, with these parameters, attributions sum to the target's change from the baseline.
        tolerances: how closely answer and reference must match.
    """

    captum: Callable[..., Any]
    reference: Callable[[Evidence], Reference]
    points: Callable[[Question], list[Values]]
    identity: str
    settings: Callable[[Any], dict[str, Any]] = _nothing
    options: Callable[[Question], dict[str, Any]] = _nothing
    differentiates: bool = True
    adds_up: Callable[[Any], bool] = _never
    tolerances: Tolerances = ONE_PASS


def _path_options(question: Question) -> dict[str, Any]:
    request: Any = question.request
    return {
        "baselines": tuple(question.baselines[name] for name in question.explained),
        "n_steps": request.n_steps,
        "method": request.quadrature.value,
        "internal_batch_size": question.rows if question.keeps_rows else max(CAPTUM_ROWS_A_PASS, question.rows),
    }


TABLE: dict[type[Attribution], Method] = {
    Saliency: Method(
        attr.Saliency,
        references.saliency,
        references.at_input,
        "|df/dx| from the raw gradient at the input",
        options=lambda question: {"abs": question.request.absolute},  # type: ignore[attr-defined]
    ),
    InputXGradient: Method(
        attr.InputXGradient,
        references.input_x_gradient,
        references.at_input,
        "x * df/dx from the raw gradient at the input",
    ),
    IntegratedGradients: Method(
        attr.IntegratedGradients,
        references.integrated_gradients,
        references.on_path,
        "(x - baseline) * the weighted sum of the raw gradients on the path",
        settings=lambda request: {"multiply_by_inputs": request.multiply_by_inputs},
        options=_path_options,
        adds_up=lambda request: bool(request.multiply_by_inputs),
        tolerances=PATH,
    ),
    LayerActivation: Method(
        attr.LayerActivation,
        references.layer_activation,
        references.at_input,
        "the raw output of the layer",
        differentiates=False,
    ),
    LayerGradientXActivation: Method(
        attr.LayerGradientXActivation,
        references.layer_gradient_x_activation,
        references.at_input,
        "raw output * raw gradient of the layer",
    ),
    LayerGradCam: Method(
        attr.LayerGradCam,
        references.layer_grad_cam,
        references.at_input,
        "the raw output's channels, weighted by the mean of their raw gradients",
        options=lambda question: {"relu_attributions": question.request.relu},  # type: ignore[attr-defined]
    ),
}


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
